"""One attached producer, one attached consumer, and what they told of themselves. No IO."""
