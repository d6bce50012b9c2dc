"""Shared by the commands: who the caller is, options and what they open, output, names, and late imports."""
