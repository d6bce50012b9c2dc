"""Of Spark's planner and follower."""

from tests.mutants.catalogue import Mutant
from tests.mutants.history.mended import Mended

STREAM = ("tests/unit/connectors/spark/stream/test_driver.py",)
FOLLOWER = "connectors/spark/stream/follower.py"

MENDED = (
    Mended(
        "b5e39608",
        "A batch that was repeated in a new process lacked the last entry of an idle topic.",
        Mutant(
            "history: a repeated batch ends where this process has seen entries to settle",
            FOLLOWER,
            "            self._open[ledger_id].reach(entry_id - 1)\n            self._arrange()\n",
            "            pass\n",
            STREAM,
        ),
    ),
    Mended(
        "768efc13",
        "A repeated batch left out what a server of the metadata store that is behind did not know.",
        Mutant(
            "history: a server of the metadata store that is behind is believed",
            FOLLOWER,
            "            await self._store.sync()\n            record = await stored_record(",
            "            record = await stored_record(",
            STREAM,
        ),
    ),
    Mended(
        "df7e7664",
        "A stream passed over the end of a ledger that its broker had left without closing it.",
        Mutant(
            "history: what stands behind an open ledger is read before its end",
            FOLLOWER,
            "                break  # rule 4\n",
            "                pass\n",
            STREAM,
        ),
    ),
    Mended(
        "1cc51077",
        "Entries that a stream had seen in an open ledger and that were gone before it read them were not missed.",
        Mutant(
            "history: what was seen of an open ledger that is gone is not missed",
            FOLLOWER,
            "                    self._note_loss(ledger.run)\n",
            "                    pass\n",
            STREAM,
        ),
    ),
    Mended(
        "1538e8b7",
        "A slow look made an entry old at once, and a stream read what its writer had not confirmed.",
        Mutant(
            "history: an entry is held from the beginning of a look on",
            FOLLOWER,
            "        handle = self._handle\n"
            "        try:\n"
            "            held = await handle.last_recoverable_entry(is_certain=True)\n"
            '            self._problem = ""\n'
            "        except NoSuchLedger:\n"
            "            self.is_closed = self.is_gone = True\n"
            "            return\n"
            "        except EndUnknown as error:\n"
            "            held = error.last_known\n"
            "            self._complain(error)\n"
            "        except (BookKeeperError, DigestMismatch) as error:\n"
            "            self._complain(error)\n"
            "            return\n"
            "        if handle.is_closed:\n"
            "            self.is_closed = True\n"
            "            self.run = _run_of(handle, handle.metadata.last_entry_id)\n"
            "            return\n"
            "        confirmed, now = handle.last_add_confirmed, self._clock.monotonic()",
            "        handle, now = self._handle, self._clock.monotonic()\n"
            "        try:\n"
            "            held = await handle.last_recoverable_entry(is_certain=True)\n"
            '            self._problem = ""\n'
            "        except NoSuchLedger:\n"
            "            self.is_closed = self.is_gone = True\n"
            "            return\n"
            "        except EndUnknown as error:\n"
            "            held = error.last_known\n"
            "            self._complain(error)\n"
            "        except (BookKeeperError, DigestMismatch) as error:\n"
            "            self._complain(error)\n"
            "            return\n"
            "        if handle.is_closed:\n"
            "            self.is_closed = True\n"
            "            self.run = _run_of(handle, handle.metadata.last_entry_id)\n"
            "            return\n"
            "        confirmed = handle.last_add_confirmed",
            STREAM,
        ),
    ),
    Mended(
        "9e52d1d8",
        "A stream whose topic was empty failed when brokers replaced the empty ledger.",
        Mutant(
            "history: an empty ledger is a place up to which a stream reads",
            FOLLOWER,
            "            return EARLIEST  # and not the first ledger, which is empty: brokers give up such a "
            "one at any time\n",
            "            return self.begin\n",
            STREAM,
        ),
    ),
    Mended(
        "f54b5523",
        "A stream took for loss that a ledger which it had read was trimmed between planning and reading.",
        Mutant(
            "history: a ledger that was read whole and is trimmed counts as lost",
            FOLLOWER,
            "        return end <= self._gone_whole_end  # if something of it had not been read, `loss` reports it\n",
            "        return False\n",
            STREAM,
        ),
    ),
    Mended(
        "fae22f5e",
        "An exactly-once stream put a large row into one entry with those before it, which brokers refuse for ever.",
        Mutant(
            "history: a large row goes into one entry with those before it",
            "connectors/spark/write/exactly_once.py",
            "        if self._numbering.open_bytes + size_of(message) > self._group_bytes:\n",
            "        if False:\n",
            ("tests/unit/connectors/spark/write/test_exactly_once.py",),
        ),
    ),
)
