"""The messages of batch entries as columns, without a Python object for each. No IO."""
