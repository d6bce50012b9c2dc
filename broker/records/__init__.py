"""Records in the metadata store that are JSON, and what is kept of them as long as nobody changes them."""
