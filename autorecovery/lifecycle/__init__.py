"""What operators do with a bookie: drain and remove it, without losing anything by that."""
