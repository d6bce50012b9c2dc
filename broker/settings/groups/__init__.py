"""Groups of a broker's settings: fields under Apache's names, each group with its own rules beside it. No IO."""
