"""One attached producer, one attached consumer, and what they said about themselves. No IO."""
