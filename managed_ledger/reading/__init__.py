"""Entries by position: from memory, or from the bookies before they are asked for."""
