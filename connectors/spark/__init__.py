"""Topics as DataFrames of Spark: read from the bookies, written with the official client.

`source.py` and `sink.py` are what Spark calls. On the driver `options` are read, `plan` decides which entries a
query reads, and `stream` which come next. On an executor a `task` reads its entries; `batches` and `values` make
columns of them. `write` sends rows as messages; `worker` is about the Python processes that Spark starts. Nothing
of broker and bookie is imported here.
"""
