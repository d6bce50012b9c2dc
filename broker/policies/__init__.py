"""What namespaces and topics are allowed, and how they are set up: Apache's records, their rules and values."""
