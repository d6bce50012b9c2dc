"""What this broker serves now: open topics, lists of topics, schemas, storage, lookups."""
