"""Which ledgers there are, on which bookies, and which copies each of them has."""
