"""From the schema of a topic to the types of Spark, and from stored values to columns. No IO."""
