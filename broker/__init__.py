"""A broker of Pulsar: it owns bundles of topics, and turns messages into entries of ledgers.

`broker.py` starts and stops the parts. Clients come in by `binary` (Pulsar's protocol), `grpc` (the topic API) or
`admin` (HTTP); all three call the same topics (`topic`). `serving` has what this broker serves now, `ownership`
which bundles are its own, `transfer` how bundles come and go. Settings (`settings`), namespaces and topics'
policies (`policies`) and the records of tenants (`tenancy`) decide what is allowed; `security` asks who may do it.
Messages are stored by `managed_ledger`.
"""
