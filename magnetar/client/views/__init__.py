"""Topics as tables: the last value of each key."""
