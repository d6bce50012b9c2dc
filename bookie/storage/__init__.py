"""How entries are kept: journal, write cache, entry logs, index, checkpoints."""
