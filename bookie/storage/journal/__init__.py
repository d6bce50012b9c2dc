"""The file in which an entry is on disk before it is confirmed."""
