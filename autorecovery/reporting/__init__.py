"""What nodes say of themselves and of ledgers that they could not repair."""
