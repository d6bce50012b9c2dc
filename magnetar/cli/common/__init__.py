"""What commands share: who the caller is, options, tables, and hints for names of other tools."""
