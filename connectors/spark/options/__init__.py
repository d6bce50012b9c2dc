"""The options of reads and writes, and the columns of metadata. No IO."""
