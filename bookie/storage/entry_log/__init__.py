"""The files that hold the entries of all ledgers."""
