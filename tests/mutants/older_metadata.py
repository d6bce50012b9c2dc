"""Mistakes about metadata that went back in time: at bookies, at owners of topics, and where ledgers are saved."""

from tests.mutants.catalogue import Mutant

OLDER = "tests/unit/bookie/maintenance/older_metadata"
LOOK = (f"{OLDER}/test_older_metadata.py",)
NOTE = (f"{OLDER}/test_note.py",)
WENT_BACK = ("tests/unit/managed_ledger/test_went_back.py",)
STRAYS = ("tests/unit/magnetar/inspect/test_strays.py",)
PLACES = ("tests/unit/magnetar/inspect/test_stray_rules.py",)

MUTANTS = (
    # -- bookies
    Mutant(
        "a ledger that is newer than the metadata is deleted",
        "bookie/maintenance/garbage/deleted_ledgers.py",
        "            unlisted -= self._older.doubts\n",
        "",
        (*LOOK, "-k", "are_newer_than"),
    ),
    Mutant(
        "garbage is collected before anybody looks",
        "bookie/maintenance/garbage/deleted_ledgers.py",
        "            await self._older.check()\n",
        "",
        (*LOOK, "-k", "looks_before"),
    ),
    Mutant(
        "numbers that were given before are given again",
        "bookie/maintenance/older_metadata/watch.py",
        "        following = await metadata.advance(newest)\n",
        "",
        (*LOOK, "-k", "are_newer_than"),
    ),
    Mutant(
        "the numbers are moved on before others can know it",
        "bookie/maintenance/older_metadata/watch.py",
        "        await self._ranges.add(newer)\n",
        "",
        (*LOOK, "-k", "comes_later"),
    ),
    Mutant(
        "what is in doubt is not on the disk before the numbers are moved on",
        "bookie/maintenance/older_metadata/watch.py",
        "        if must_be_stored and len(failures) == len(self._paths):\n",
        "        if len(failures) > len(self._paths):\n",
        (*LOOK, "-k", "cut_short"),
    ),
    Mutant(
        "a bookie registers before it has looked",
        "magnetar_core/bookkeeper/metadata/bookies/register.py",
        "        while not self._is_checked:\n            await self._check_again()\n",
        "",
        (*LOOK, "-k", "before_that_registers"),
    ),
    Mutant(
        "a store that answers again is taken for the same",
        "magnetar_core/bookkeeper/metadata/bookies/register.py",
        "        elif event is SessionEvent.CONNECTED and self.before is not None:\n",
        "        elif event is SessionEvent.LOST and self.before is not None:\n",
        (*LOOK, "-k", "same_session"),
    ),
    Mutant(
        "copies count as moved by what old metadata say",
        "bookie/maintenance/garbage/collector.py",
        "self._moved.is_due and not self.older_metadata.is_open:",
        "self._moved.is_due:",
        (*LOOK, "-k", "counts_as_moved"),
    ),
    Mutant(
        "a number that was given before proves nothing without a ledger",
        "bookie/maintenance/older_metadata/note.py",
        "        return max([self.given, *(",
        "        return max([-1, *(",
        (*LOOK, *NOTE, "-k", "given"),
    ),
    Mutant(
        "what an operator gave up is in doubt again",
        "bookie/maintenance/older_metadata/note.py",
        "        return replace(self, given=-1, open_ms=0, doubts=frozenset())\n",
        "        return replace(self, given=-1, open_ms=0, known=(), doubts=frozenset())\n",
        (*LOOK, "-k", "gives_up"),
    ),
    Mutant(
        "a number that went back is taken for a new one",
        "magnetar_core/bookkeeper/metadata/ledgers/ledger_store.py",
        "            if ledger_id <= newest:\n",
        "            if ledger_id < -1:\n",
        (*LOOK, "-k", "makes_ledgers"),
    ),
    # -- owners of records
    Mutant(
        "an older version of a record is taken for another owner's",
        "managed_ledger/records/versioned_record.py",
        "        if node is None or node.version >= self.version:\n",
        "        if node is None or node.version >= -1:\n",
        WENT_BACK,
    ),
    Mutant(
        "a record that was made anew is taken for an older one",
        "managed_ledger/records/versioned_record.py",
        "        if node.created_ms > self._created_ms:\n",
        "        if node.created_ms < self._created_ms:\n",
        (*WENT_BACK, "-k", "still_another"),
    ),
    Mutant(
        "the older node of a cursor is written over",
        "managed_ledger/cursors/cursor_store.py",
        "            except MetadataWentBack:\n                raise  # this is not a former owner's late write\n",
        "",
        (*WENT_BACK, "-k", "node_of_a_cursor"),
    ),
    Mutant(
        "the older record of a ledger is written over",
        "magnetar_core/bookkeeper/client/ledger_record.py",
        "        if current.version < self._versioned.version:\n",
        "        if current.version < -1:\n",
        (*WENT_BACK, "-k", "record_of_a_ledger"),
    ),
    # -- saving
    Mutant(
        "a ledger that is saved may still be written to",
        "magnetar/inspect/strays.py",
        "fencing_key=master_key(password)",
        "fencing_key=None",
        (*STRAYS, "-k", "acknowledged_nothing_more"),
    ),
    Mutant(
        "a bookie that is away has nothing",
        "magnetar/inspect/strays.py",
        'if bookie.state == "away" and bookie.bookie_id not in without]',
        "if bookie.bookie_id not in without and bookie.bookie_id in without]",
        (*STRAYS, "-k", "is_away"),
    ),
    Mutant(
        "a ledger is cut off below what was acknowledged",
        "magnetar/inspect/stray_rules.py",
        "    if first_gap <= last_confirmed:\n",
        "    if first_gap < -1:\n",
        (*STRAYS, *PLACES, "-k", "acknowledged"),
    ),
    Mutant(
        "a copy stands where its record does not look",
        "magnetar/inspect/stray_rules.py",
        "all((at - rest) % size < quorum for rest in rests)",
        "all((at - rest) % size <= quorum for rest in rests)",
        PLACES,
    ),
    Mutant(
        "the last ledger of a topic stays open in the middle of its list",
        "magnetar/inspect/strays.py",
        "            infos[-1:] = await self._close(infos[-1], topic)\n",
        "            pass\n",
        (*STRAYS, "-k", "closed_first"),
    ),
    Mutant(
        "a topic is changed under its broker",
        "magnetar/inspect/strays.py",
        "        if brokers:\n",
        "        if not brokers:\n",
        (*STRAYS, "-k", "brokers_are_there"),
    ),
)
