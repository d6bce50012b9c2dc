"""One process: start and stop, its memory and descriptors, and a watch over its event loop."""
