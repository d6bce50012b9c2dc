"""Pulsar's binary protocol: bytes come in, values go to the broker, and answers become bytes.

`server.py` has the sockets; all else decides without IO. `connection.py` gives each command to the part that takes
it.
"""
