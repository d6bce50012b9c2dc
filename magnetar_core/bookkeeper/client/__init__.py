"""The client of ledgers: create, write, read, recover, delete.

`client.py` is the entrance. What decides (`deciding`, `placing`) does no IO; the handles carry it out over
connections (`wire`).
"""
