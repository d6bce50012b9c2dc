"""A subscription and its place in the topic: acknowledgements, seeks, backlog quotas."""
