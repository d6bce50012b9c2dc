"""What the other modules of the client stand on: gRPC, what speaks at a port, and the arguments of public calls."""
