"""Ledgers that were deleted or moved away, and the logs in which nothing lives any more.

collector        a round begins: is the cluster ours?
deleted_ledgers  local ids → listing → not listed: read its metadata → "no such ledger"
rules            quarantine: the same again in a later round; a listing that is empty or shrank is refused (pure)
ledger_removal   index rows deleted between two flushes; a fence is kept as a tombstone
compaction       logs without live ledgers removed; those with little: live entries copied into a new log,
                 synced, locations moved, index synced, old log removed
"""
