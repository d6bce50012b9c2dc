"""Messages on their way into a topic: who may send, what was sent already, and receipts."""
