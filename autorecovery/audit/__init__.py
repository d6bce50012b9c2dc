"""Which node looks at the ledgers of the cluster, and when: the election of the auditor and its checks."""
