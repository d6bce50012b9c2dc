"""Handles and requests that read ledgers."""
