"""BookKeeper as all parts need it: the wire, the metadata, and the client of ledgers."""
