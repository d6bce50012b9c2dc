"""Clusters, tenants, namespaces, partitions and resource groups: each record has one writer."""
