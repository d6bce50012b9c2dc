"""The ledgers of one topic: created, listed, recovered, removed."""
