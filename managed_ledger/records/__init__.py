"""Records of topics and cursors in the metadata store: paths, encoding, versions."""
