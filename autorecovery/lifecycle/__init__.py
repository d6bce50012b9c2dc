"""The life of a bookie as operators lead it: drain, removal, and what must not be lost by them."""
