"""Metadata that went back in time, as after a restore: what a bookie notes, and how it looks for it."""
