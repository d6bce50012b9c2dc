"""Commands of Pulsar's protocol as bytes and values. No IO."""
