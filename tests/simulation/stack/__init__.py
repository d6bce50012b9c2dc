"""Whole clusters under virtual time: real brokers, bookies, auto-recovery; a client as the official ones behave."""
