"""Of bookies: journal, storage, serving, registration."""

from tests.mutants.catalogue import Mutant
from tests.mutants.history.mended import Mended, catalogued

BACK_PRESSURE = ("tests/unit/bookie/serving/test_back_pressure.py",)
REGISTER = ("tests/unit/magnetar_core/bookkeeper/metadata/bookies/test_register.py",)

MENDED = (
    Mended(
        "f4c44b89",
        "A bookie whose change of mode the metadata store did not take stayed writable for its clients, or missing.",
        Mutant(
            "history: a change of mode that failed half way counts as made",
            "magnetar_core/bookkeeper/metadata/bookies/register.py",
            "            if self._is_shown and (read_only, reason) == (self.read_only, self._reason):\n",
            "            if (read_only, reason) == (self.read_only, self._reason):\n",
            REGISTER,
        ),
    ),
    Mended(
        "6a7c564d",
        "A bookie that became writable while the register was read was taken for gone.",
        Mutant(
            "history: a bookie between the two lists of the register is gone",
            "magnetar_core/bookkeeper/metadata/bookies/register.py",
            "        if not self.available <= writable | read_only:\n",
            "        if False:\n",
            REGISTER,
        ),
    ),
    Mended(
        "a0e89f49",
        "Adds with DEFERRED_SYNC filled a bookie's memory: they did not hold their connection.",
        Mutant(
            "history: deferred adds have no limit",
            "bookie/serving/writes.py",
            "        self._hold_if_full()\n        if server.has_too_many_adds:\n            "
            "self._peer.hold(ALL_ADDS)\n\n    def took",
            "\n    def took",
            BACK_PRESSURE,
        ),
    ),
    Mended(
        "adb6bf3b",
        "Fences and explicit LACs that wait for the journal had no limit.",
        Mutant(
            "history: fences do not count as adds in flight",
            "bookie/serving/writes.py",
            "        self._server.fence(ledger_id, key, self._in_flight(0, done))\n",
            "        self._server.fence(ledger_id, key, done)\n",
            ("tests/unit/bookie/serving/test_limits.py",),
        ),
    ),
    Mended(
        "ab78a24a",
        "Fences waited for room in a write cache of which they need none: a takeover stood still behind it.",
        Mutant(
            "history: fences wait for room in the write cache",
            "bookie/serving/writes.py",
            "        server.add_bytes_in_flight += size\n        self._hold_if_many()\n",
            "        server.add_bytes_in_flight += size\n        self._hold_if_full()\n",
            BACK_PRESSURE,
        ),
    ),
    Mended(
        "255f56dc",
        "A long poll of a ledger that was fenced before did not wait: clients asked in a circle.",
        Mutant(
            "history: a long poll of a fenced ledger is answered at once",
            "bookie/serving/protocol_v3.py",
            "                or ledger.last_add_confirmed > previous\n",
            "                or ledger.last_add_confirmed > previous\n                or ledger.fenced\n",
            ("tests/unit/bookie/test_bookie.py",),
        ),
    ),
    Mended(
        "96d34d69",
        "An entry log that was read in the moment of its removal kept its disk space.",
        Mutant(
            "history: the file of a log is closed before its name goes",
            "bookie/storage/entry_log/files.py",
            "        with contextlib.suppress(FileNotFoundError):\n"
            "            self._files.remove(posixpath.join(self.directory, file_name(log_id)))\n"
            "        # After its name: a reader that came in between would open it again, and nobody would "
            "close that.\n"
            "        with self._opening:\n            file = self._open.pop(log_id, None)\n",
            "        with self._opening:\n            file = self._open.pop(log_id, None)\n"
            "        with contextlib.suppress(FileNotFoundError):\n"
            "            self._files.remove(posixpath.join(self.directory, file_name(log_id)))\n",
            ("tests/unit/bookie/test_parts.py",),
        ),
    ),
    Mended(
        "aeaa1891",
        "A scrub that met a damaged index failed every ten minutes, and nothing rebuilt the index.",
        Mutant(
            "history: a scrub reports a damaged index to nobody",
            "bookie/maintenance/scrub.py",
            "                        self._on_index_corrupt(ledger_id, error)\n                        raise\n",
            "                        raise error\n",
            ("tests/unit/bookie/maintenance/test_integrity.py",),
        ),
    ),
    Mended(
        "a592fbb9",
        "What a flush had written of a ledger whose row a crash took was called absent, and recoveries cut it off.",
        catalogued("what is flushed of a ledger whose row a crash took is called absent"),
    ),
    Mended(
        "ab2b6e1d",
        "Groups were written behind a refused one that could not be cut off, and its replay brought it back.",
        catalogued("groups are written behind what could not be cut off"),
    ),
    Mended(
        "6ab06137",
        "A bookie that was removed while it ran turned writable again.",
        catalogued("a bookie that was removed while it runs turns writable"),
    ),
    Mended(
        "cdd3d8cf",
        "With metadata that went back in time a bookie deleted ledgers that are newer than these.",
        catalogued("a ledger that is newer than the metadata is deleted"),
    ),
)
