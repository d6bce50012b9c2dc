"""What other systems use to read and write topics."""
