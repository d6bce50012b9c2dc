"""Which broker serves which bundle: acquired in the metadata store, kept while the session lasts."""
