"""Commands that copy what is stored: a standalone as a whole, and the records of a metadata store."""
