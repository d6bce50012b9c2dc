"""Entries on their way to the present ledger, and the next ledger when that is full or fails."""
