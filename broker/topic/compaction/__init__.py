"""The last message of each key of a topic: which it is, the run that writes it, and how it is read."""
