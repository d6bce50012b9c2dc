"""Settings of Apache's brokers that this one does not have: lists of them (`*.conf`), and `names`, which reads them.
No IO."""
