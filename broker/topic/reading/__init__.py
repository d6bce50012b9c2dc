"""A subscription and its place in the topic: what is read, acknowledgements, seeks, backlog quotas."""
