"""Bundles that come and go: moved for load, given back at a stop, taken over from a broker that died."""
