"""The page for people at the root of the broker's HTTP: its files, its calls, and the history that its plots show."""
