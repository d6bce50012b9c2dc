"""The rules of a ledger as state machines: its writer, readers, recovery and quorums. No IO."""
