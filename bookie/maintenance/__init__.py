"""What a bookie does beside serving: garbage, checks of what is stored, repair from other bookies."""
