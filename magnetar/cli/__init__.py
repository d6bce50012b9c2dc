"""The command `magnetar`: one module for each noun, `bookie` and `messages` as folders; `common` is what they share.

`main` knows the nouns by name and imports the module of the one that is called, so modules import what they need at
their top. Only what few commands of a noun need stays inside a function: pulsar, rich, a server's process.
"""
