"""How much may pass a second: of a topic, of a resource group, of one client. No IO."""
