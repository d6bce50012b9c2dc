"""What brokers write for each other of the topics that they serve, so that a successor can begin at once."""
