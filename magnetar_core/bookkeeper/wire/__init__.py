"""BookKeeper's two protocols and its entries, as bytes and values. No IO."""
