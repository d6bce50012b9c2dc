"""Small forms of data: numbers in buckets, varints, JSON from outside, texts that are shown."""
