"""The HTTP of a bookie: its state, its numbers, and what operators can ask of it."""
