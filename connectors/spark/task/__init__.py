"""On an executor: the entries of one task, from the bookies to record batches."""
