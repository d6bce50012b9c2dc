"""On the driver: how far a streaming query has come, and what is new."""
