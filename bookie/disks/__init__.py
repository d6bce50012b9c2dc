"""The directories of a bookie: to whom they belong, how full they are, and whether it takes entries.

A bookie is read-only for reasons (`read_only`): disk, operator, draining, error. Each ends by its own condition;
what an operator set survives a restart.
"""
