"""Mistakes that the replicated state log could make (see `catalogue`)."""

from tests.mutants.catalogue import Mutant

UNIT = "tests/unit/managed_ledger/state_log"
ROOM = "managed_ledger/state_log"

MUTANTS = (
    Mutant(
        "a promotion does not fence",
        f"{ROOM}/log/list_record.py",
        "password=password, recovery=True)",
        "password=password, recovery=False)",
        (f"{UNIT}/test_state_log.py", "-k", "r_s1"),
    ),
    Mutant(
        "a leader changes the list whoever changed it before",
        f"{ROOM}/log/list_record.py",
        "            await self._record.write(encode_list(new_list))\n",
        "            await self._record.read()\n            await self._record.write(encode_list(new_list))\n",
        (f"{UNIT}/log/test_list_record.py",),
    ),
    Mutant(
        "an entry that was left out is not missed",
        f"{ROOM}/replica.py",
        "        if position != expected:\n",
        "        if position.ledger_id != expected.ledger_id:\n",
        (f"{UNIT}/test_edits.py",),
    ),
    Mutant(
        "a snapshot's name is not synced before older ones go",
        f"{ROOM}/snapshots/disk.py",
        "            self._files.sync_directory(self._folder)\n",
        "",
        (f"{UNIT}/snapshots/test_disk.py", "-k", "r_s4"),
    ),
    Mutant(
        "a snapshot is not synced before it is renamed",
        f"{ROOM}/snapshots/disk.py",
        "                file.sync()\n",
        "",
        (f"{UNIT}/snapshots/test_disk.py", "-k", "r_s4"),
    ),
    Mutant(
        "one snapshot is kept",
        f"{ROOM}/snapshots/disk.py",
        "KEPT: Final = 2\n",
        "KEPT: Final = 1\n",
        (f"{UNIT}/snapshots/test_disk.py", "-k", "i121"),
    ),
    Mutant(
        "ledgers leave behind the leader's snapshots alone",
        f"{ROOM}/log/log_list.py",
        "        bound = min([own, *covered[: copies - 1]])\n",
        "        bound = own\n",
        (f"{UNIT}/test_edits.py", "-k", "i122"),
    ),
    Mutant(
        "an edit whose token is known is applied again",
        f"{ROOM}/replica.py",
        "        if seen is not None:\n",
        "        if seen == 0:\n",
        (f"{UNIT}/test_edits.py", "-k", "i125"),
    ),
    Mutant(
        "an edit whose token was forgotten is applied",
        f"{ROOM}/replica.py",
        "        elif edit.number > edit.token.since + TOKENS_KEPT:\n",
        "        elif edit.number > edit.token.since + 2 * TOKENS_KEPT:\n",
        (f"{UNIT}/test_edits.py", "-k", "i125"),
    ),
    Mutant(
        "a ledger is left before its last entry",
        f"{ROOM}/replica.py",
        "        return self.position.entry_id == last_entry_id\n",
        "        return True\n",
        (f"{UNIT}/test_edits.py", "-k", "i126"),
    ),
    Mutant(
        "the first entry of a ledger is skipped",
        f"{ROOM}/replica.py",
        "        self.position = Position(ledger.ledger_id, -1)\n",
        "        self.position = Position(ledger.ledger_id, 0)\n",
        (f"{UNIT}/test_state_log.py", "-k", "r_s9"),
    ),
    Mutant(
        "a barrier asks nobody",
        f"{ROOM}/state_log.py",
        "            await leading.barrier()\n",
        "            leading._check()\n",
        (f"{UNIT}/test_state_log.py", "-k", "barrier_of"),
    ),
    Mutant(
        "a ledger is written before it is listed",
        f"{ROOM}/leading.py",
        "        try:\n            async with self._list_lock:\n",
        "        handle.append([b'early'])\n        try:\n            async with self._list_lock:\n",
        (f"{UNIT}/test_state_log.py", "-k", "i117"),
    ),
    Mutant(
        "a ledger that the list may name is deleted",
        f"{ROOM}/leading.py",
        "            if not await self.term.may_be_listed(handle.ledger_id):\n",
        "            if True:\n",
        (f"{UNIT}/test_state_log.py", "-k", "in_doubt"),
    ),
    Mutant(
        "a follower looks by the clock alone",
        f"{ROOM}/state_log.py",
        "            self._tail.watch(self._on_news)\n",
        "",
        ("tests/unit/magnetar_core/bookkeeper/client/reading/test_long_poll.py", "-k", "follower"),
    ),
    Mutant(
        "a long poll that ends without news is news",
        "magnetar_core/bookkeeper/client/reading/long_poll.py",
        "return answer.readResponse.maxLAC > asked.last_add_confirmed",
        "return answer.readResponse.maxLAC >= asked.last_add_confirmed",
        ("tests/unit/magnetar_core/bookkeeper/client/reading/test_long_poll.py", "-k", "no_news"),
    ),
)
