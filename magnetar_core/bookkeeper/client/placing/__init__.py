"""Which bookies form an ensemble: racks, regions, groups. No IO."""
