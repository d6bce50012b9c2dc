"""The port of a bookie: connections, both protocols, reads, adds, and which of them may go first."""
