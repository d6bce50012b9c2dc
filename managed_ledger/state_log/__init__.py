"""A replicated state machine on ledgers: a leader appends, the other nodes follow."""
