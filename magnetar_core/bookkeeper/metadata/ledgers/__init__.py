"""The records of ledgers: their fields, encodings and legal changes."""
