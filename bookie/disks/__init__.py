"""The directories of a bookie: to whom they belong, how full they are, and whether it takes entries."""
