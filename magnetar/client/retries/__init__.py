"""What becomes of messages that a program could not process: the rules (`retry`), and the copies in other topics
(`letters`)."""
