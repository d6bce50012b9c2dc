"""Reports of bad ledgers and lost entries."""
