"""Calls about tenants and namespaces, their policies, bundles and backlogs."""
