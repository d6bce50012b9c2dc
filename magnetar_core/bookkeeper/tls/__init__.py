"""Encrypted connections between bookies and their clients."""
