"""Which ledgers lack copies, and who works on them."""
