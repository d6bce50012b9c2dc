"""Clusters, tenants, namespaces, partitions and resource groups: who writes which record."""
