"""The repair of one ledger: which fragments are copied, how fast, and what is remembered of failures."""
