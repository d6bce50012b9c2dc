"""On the driver: which topics, ledgers and entries a query reads, and in which tasks."""
