"""`magnetar produce`, `consume`, `read`, `tail`, and commands about single entries."""
