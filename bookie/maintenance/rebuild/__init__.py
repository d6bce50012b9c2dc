"""A new index out of the entry logs, with the server stopped or running."""
