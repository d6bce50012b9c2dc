"""HTTP of all servers and commands: requests, bodies within limits, names that are answered."""
