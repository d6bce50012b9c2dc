"""The list of the ledgers of a state log."""
