"""The process of a bookie: its parts, its settings, and the rebuild of its index."""
