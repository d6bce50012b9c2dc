"""What namespaces and topics are allowed and told: Apache's records, their rules and values. No IO."""
