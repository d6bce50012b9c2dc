"""A replicated state machine on ledgers: a leader appends, the others follow."""
