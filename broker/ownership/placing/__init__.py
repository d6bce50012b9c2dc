"""Which broker shall have a bundle where operators have a word in it: isolation policies, anti-affinity groups."""
