"""Calls about the cluster: brokers, bookies, clusters, load, lookups."""
