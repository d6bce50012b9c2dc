"""The endless log of a topic: a sequence of ledgers, of which only the last is written.

`factory.py` opens managed ledgers, `ledger.py` is one. Entries go in by `writing` and come out by `reading`;
`ledgers` are the lives of the single ledgers, `cursors` how far each subscription is. `records` are the nodes of
the metadata store, in Apache's encoding. `compacted` ledgers, `schemas` and the replicated `state_log` are beside
it. Brokers are not known here.
"""
