"""Snapshots of the state: their bytes, and the disk."""
