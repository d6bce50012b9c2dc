"""The endless log of a topic: a sequence of ledgers, of which only the last is written.

`factory.py` opens managed ledgers, `ledger.py` is one. Entries go in by `writing` and come out by `reading`;
`ledgers` has the lives of the single ledgers, `cursors` says how far each subscription is. `records` are the nodes of
the metadata store, in Apache's encoding. `compacted` ledgers, `schemas` and the replicated `state_log` are beside
it. Nothing of a broker is imported here.
"""
