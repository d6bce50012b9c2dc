"""One service of several processes, on one address (`--processes N`)."""
