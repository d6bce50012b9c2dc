"""What commands share: who the caller is, options and what they open, output, names, and late imports."""
