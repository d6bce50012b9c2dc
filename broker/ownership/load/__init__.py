"""How much brokers and bundles carry, and which bundle should go where. No IO."""
