"""Bundles that come and go: moved for load, given back at a stop, taken over from a broker that died.

A lookup for a topic whose owner does not answer waits in the broker until the owner's session has ended, instead of
failing: clients that are refused back off, and lose more time than the takeover takes. Thousands that wait for the
same bundle share one look at its node. Their topics are opened side by side; what that changes in ZooKeeper goes
there in groups.

Each broker writes into a replicated log which topics it serves, and the ledgers and cursors of each (`rosters`,
`managed_ledger.ledgers.holdings`). A broker that sees that another one does not answer, or is not registered any more,
knows what to open, the busiest topics first. While the session lasts (or the stop) the records of their ledgers are
read and their next ledgers are created (`takeovers`, `managed_ledger.ledgers.preparing`): that touches nothing of the
owner's. When the bundle is free it is taken, and its topics are opened before clients ask. A log that is old, wrong or
lost costs time: what it does not hold is read, and a topic is opened when its clients come.

A broker that is stopped politely (`handing_over`) takes no new bundles from then on, and gives its own to the
others one by one. Bundles with very many open topics are cut before.
"""
