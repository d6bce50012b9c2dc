"""Auto-recovery: every ledger gets back the copies that it has lost, and bookies can leave a cluster.

`node.py` is one node: a candidate for the place of the auditor, and a worker. The auditor finds what lacks copies
(`audit`) and marks it in the metadata store; workers take the marks and copy (`repair`). Operators drain and remove
bookies (`lifecycle`). What happens is shown in reports (`reporting`) and over HTTP (`admin`), and sent to callbacks.
Broker and bookie are not imported here; ledgers are read and written through `magnetar_core.bookkeeper.client`.
"""
