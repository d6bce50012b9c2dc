"""A storage node of BookKeeper: entries come in over two protocols and are on disk before they are confirmed.

`bookie.py` starts and stops its parts, `assembly.py` puts them together. An add goes through `serving` into the
journal and the write cache (`storage`), and from there into entry logs. `maintenance` collects garbage, checks and
repairs; `disks` decides what directories take; `admin` is HTTP. A bookie knows the wire and the metadata, never the
client of ledgers, except for repairs through `maintenance/peers.py`.
"""
