"""Ledgers that hold what compaction kept of a topic."""
