"""Who gets in: limits of connections, the PROXY header, the handshake, and what a caller may do."""
