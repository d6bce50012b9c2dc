"""How far each subscription is: positions, acknowledged ranges, and how they are stored."""
