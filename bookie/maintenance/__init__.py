"""What a bookie does besides serving: garbage, checks of what is stored, repair from other bookies.

When entries may be missing (unclean start, an emptied disk) the ledgers concerned are in limbo: "no such entry"
becomes "unknown" until `integrity` has compared them with their other copies. What the index knows of the files
beside it stands in it as notes (`bookie.storage.known`): the newest entry of each entry log, and the journal's
marks. A start compares them: an index that is older than the marks, or another bookie's, is made anew; what logs
lack is fetched from other copies or reported as lost (`lost_logs`), and until then an error.

The index is derived. `rebuild` makes it anew at a start or while the bookie serves; a record counts if it has the
digest of its ledger, and if it is not clear whether entries are missing, ledgers go into limbo. Of a log that cannot
be read only its own entries are missing, and nothing removes it.
"""
