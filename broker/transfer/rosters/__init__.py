"""What brokers tell each other of the topics that they serve, so that a successor can begin at once."""
