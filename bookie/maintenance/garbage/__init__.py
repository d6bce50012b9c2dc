"""Ledgers that were deleted or moved away, and the logs in which nothing lives any more."""
