"""The metadata tree: one interface (`store.py`), in memory, in RocksDB, in ZooKeeper."""
