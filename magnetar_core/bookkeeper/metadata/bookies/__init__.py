"""Which bookies there are, where they stand, and what is to become of them."""
