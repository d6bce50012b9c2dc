"""Connections to bookies."""
