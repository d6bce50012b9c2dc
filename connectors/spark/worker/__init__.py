"""The Python processes that Spark starts: their memory, log and sockets."""
