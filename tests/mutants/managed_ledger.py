"""Mistakes that the managed ledger could make (see `catalogue`)."""

from tests.mutants.catalogue import Mutant

UNIT = "tests/unit/managed_ledger"
POSITIONS = (f"{UNIT}/test_positions.py", "tests/conformance/test_cursor.py")
CURSORS = ("tests/conformance/test_cursor.py",)
LEDGER = (f"{UNIT}/test_ledger.py",)
FAULTS = (f"{UNIT}/test_ledger_under_faults.py",)
RETENTION = (f"{UNIT}/test_retention.py",)
LOST = (f"{UNIT}/test_lost_data.py",)
INDEX = (f"{UNIT}/reading/test_entry_index.py",)
TAILS = (f"{UNIT}/ledgers/test_tails.py",)
COMPACTED = ("tests/unit/broker/test_compacted_topics.py",)
STEPS = (f"{UNIT}/test_order_of_steps.py",)

MUTANTS = (
    # -- ledgers in tiered storage
    Mutant(
        "a ledger in tiered storage counts as lost",
        "managed_ledger/reading/reading.py",
        "        if only_offloaded(info):\n",
        "        if False:\n",
        ("tests/unit/managed_ledger/ledgers/test_offloaded.py",),
    ),
    Mutant(
        "the last ledger is forgotten where it is in tiered storage",
        "managed_ledger/ledgers/lifecycle.py",
        "        if only_offloaded(last):\n",
        "        if False:\n",
        ("tests/unit/managed_ledger/ledgers/test_offloaded.py",),
    ),
    # -- buckets of delayed messages of Apache's brokers
    Mutant(
        "buckets of delayed messages stay when their subscription goes",
        "managed_ledger/cursors/cursor_store.py",
        "        await self._delete_buckets()\n",
        "",
        ("tests/unit/managed_ledger/ledgers/test_delayed_buckets.py",),
    ),
    Mutant(
        "a property that a client chose deletes any ledger",
        "managed_ledger/ledgers/delayed_buckets.py",
        "            if _is_bucket_of(await bookkeeper.read_metadata(ledger_id), managed_ledger):\n",
        "            if await bookkeeper.read_metadata(ledger_id):\n",
        ("tests/unit/managed_ledger/ledgers/test_delayed_buckets.py",),
    ),
    # -- transactions of Apache's brokers
    Mutant(
        "a topic with messages of transactions is opened",
        "managed_ledger/factory.py",
        "        await self._transactions.check(name)\n",
        "",
        ("tests/golden/test_transactions.py", "-k", "not_opened"),
    ),
    Mutant(
        "who asks shares a reading that has begun",
        "managed_ledger/transactions/snapshots.py",
        "            del self._next[snapshots]\n            return await self._read_if_stored(snapshots)\n",
        "            named = await self._read_if_stored(snapshots)\n"
        "            del self._next[snapshots]\n"
        "            return named\n",
        ("tests/unit/managed_ledger/transactions/test_snapshots.py",),
    ),
    Mutant(
        "an acknowledgement in a transaction that was aborted counts",
        "managed_ledger/transactions/pending_acks.py",
        "= record.pending_ack_op == PendingAckMetadataEntry.COMMIT\n",
        "= True\n",
        ("tests/unit/managed_ledger/transactions/test_pending_acks.py",),
    ),
    Mutant(
        "a subscription is served while a transaction is open",
        "managed_ledger/transactions/pending_acks.py",
        "            if not _is_acknowledged(cursor, record, ack):\n",
        "            if False:\n",
        ("tests/unit/managed_ledger/transactions/test_pending_acks.py",),
    ),
    Mutant(
        "a former owner deletes the log of a subscription's transactions",
        "managed_ledger/transactions/pending_acks.py",
        "        await check_owner()\n",
        "",
        ("tests/unit/managed_ledger/transactions/test_pending_acks.py",),
    ),
    Mutant(
        "a subscription that is taken over does not look for transactions",
        "broker/topic/subscriptions.py",
        "                self._unsettled[name] = None\n",
        "",
        ("tests/unit/broker/topic/test_transactions.py",),
    ),
    Mutant(
        "what compaction kept of the notes about transactions is not read",
        "managed_ledger/transactions/snapshots.py",
        "        if compacted is not None:\n",
        "        if compacted is None:\n",
        ("tests/unit/managed_ledger/transactions/test_snapshots.py",),
    ),
    # -- entries that only a compacted ledger has
    Mutant(
        "who opens a topic for long writes over one that was made again",
        "managed_ledger/ledgers/lifecycle.py",
        "            await self._record.check_unchanged()  # the topic may have been deleted since, and made again\n",
        "",
        ("tests/unit/managed_ledger/test_ledger_under_faults.py", "-k", "who_opens_a_topic_for_long"),
    ),
    Mutant(
        "a cursor before the ledgers goes over to them by itself",
        "managed_ledger/cursors/cursor.py",
        "        while self._ranges and self.mark_delete_position >= self._start:\n",
        "        while self._ranges:\n",
        POSITIONS,
    ),
    Mutant(
        "an acknowledgement of something older moves a cursor before the ledgers to them",
        "managed_ledger/cursors/cursor.py",
        "        if max(position, self.mark_delete_position) >= self._start:  # else rule 5\n",
        "        if not self._is_trimmed(position):\n",
        POSITIONS,
    ),
    Mutant(
        "what was acknowledged before the ledgers is not restored",
        "managed_ledger/cursors/cursor.py",
        "            elif self._is_trimmed(Position(item.ledger_id, item.last)):\n",
        "            elif False:\n",
        POSITIONS,
    ),
    Mutant(
        "acknowledgements before the ledgers count as such of the ledgers",
        "managed_ledger/cursors/cursor.py",
        "            acknowledged -= self._ranges.count_up_to(self._start)\n",
        "            pass\n",
        POSITIONS,
    ),
    Mutant(
        "a trim moves a cursor that stands before the ledgers",
        "managed_ledger/cursors/cursor.py",
        "        if former_start <= self.mark_delete_position < self._start:\n",
        "        if self.mark_delete_position < self._start:\n",
        POSITIONS,
    ),
    Mutant(
        "a stored place at the first ledger always means that nothing is consumed",
        "managed_ledger/cursors/cursor.py",
        "    return position, {CONSUMED_BEFORE: position.ledger_id} if position.entry_id < 0 else {}\n",
        "    return position, {}\n",
        POSITIONS,
    ),
    Mutant(
        "a cursor is recovered before it is known that the topic is compacted",
        "managed_ledger/cursors/cursor_set.py",
        "        for name in sorted(names, key=lambda name: name != COMPACTION_CURSOR):  # rule 3\n",
        "        for name in sorted(names, key=lambda name: name == COMPACTION_CURSOR):\n",
        COMPACTED,
    ),
    # -- what is acknowledged behind the end of a ledger
    Mutant(
        "a topic is left without what its ledger lacks",
        "managed_ledger/writing/writing.py",
        "        if handle is not None and self._appending.state is State.FENCED:\n",
        "        if False:\n",
        TAILS,
    ),
    Mutant(
        "an unload leaves behind what its ledger lacks",
        "managed_ledger/ledgers/lifecycle.py",
        '            log.warning("%s", error)\n            await self.leave(handle)\n',
        '            log.warning("%s", error)\n            await handle.abandon()\n',
        TAILS,
    ),
    Mutant(
        "what is saved stands before the ledger that it belongs behind",
        "managed_ledger/ledgers/tails.py",
        "                await record.write([*other_ledgers, *([ended] if ended.entries else []), ledger])\n",
        "                await record.write([*other_ledgers, ledger, *([ended] if ended.entries else [])])\n",
        TAILS,
    ),
    Mutant(
        "what could not be saved is not told",
        "managed_ledger/ledgers/tails.py",
        "        if lost:\n",
        "        if False:\n",
        TAILS,
    ),
    Mutant(
        "a deleted ledger is taken for a failed write",
        "managed_ledger/writing/writing.py",
        "        if isinstance(error, LedgerFenced | MetadataConflict | NoSuchLedger):\n",
        "        if isinstance(error, LedgerFenced | MetadataConflict):\n",
        FAULTS,
    ),
    Mutant(
        "an opening waits for a recovery that has not begun",
        "managed_ledger/ledgers/preparing.py",
        "        if not recovery.has_begun:\n",
        "        if False:\n",
        ("tests/unit/managed_ledger/ledgers/test_preparing.py",),
    ),
    Mutant(
        "a ledger that was closed ahead is recovered from the record of before",
        "managed_ledger/ledgers/preparing.py",
        "        return None if prepared is None else prepared.without_ledger(closed)\n",
        "        return prepared\n",
        ("tests/unit/managed_ledger/ledgers/test_preparing.py",),
    ),
    Mutant(
        "a run that is confirmed in two pieces is forgotten with the first",
        "managed_ledger/writing/write_latency.py",
        "            if done < sent:",
        "            if False:",
        ("tests/unit/managed_ledger/writing/test_write_latency.py",),
    ),
    # -- a ledger made ahead
    Mutant(
        "a ledger made ahead stays when the last one cannot be recovered",
        "managed_ledger/ledger.py",
        "            self._lifecycle.discard(ahead)\n",
        "",
        FAULTS,
    ),
    # -- the index of messages
    Mutant(
        "an index in the record counts, whatever the last entry has",
        "managed_ledger/reading/entry_index.py",
        "            return max(noted_index, index)  # rule 1",
        "            return index if noted_index == NO_INDEX else noted_index",
        INDEX,
    ),
    Mutant(
        "a ledger without entries hides the index",
        "managed_ledger/ledgers/topic_record.py",
        "        if self.index != NO_INDEX:\n            _set_property(record, PROPERTY, str(self.index))\n",
        "",
        INDEX,
    ),
    Mutant(
        "an entry without index ends the search for one",
        "managed_ledger/reading/entry_index.py",
        "        if index is not None:\n            return max(noted_index, index)",
        "        if index is not None or entries:\n            return max(noted_index, index or noted_index)",
        INDEX,
    ),
    # -- lost data
    Mutant(
        "an entry of which nothing is known counts as lost",
        "managed_ledger/reading/reading.py",
        '            raise StorageUnavailable(f"{self._name}: cannot read {position}: {error}") from error\n',
        '            raise DataLost(f"{position}: {error}", ledger_id, position.entry_id) from error\n',
        LOST,
    ),
    Mutant(
        "a ledger that another owner deleted counts as lost",
        "managed_ledger/ledger.py",
        "            await self.check_owner()  # another owner may have trimmed it\n",
        "",
        LOST,
    ),
    Mutant(
        "passing over a lost entry passes over the one behind it",
        "managed_ledger/cursors/managed_cursor.py",
        "        passed_entries = self._state.pass_over(lost.ledger_id, first, last)\n",
        "        passed_entries = self._state.pass_over(lost.ledger_id, first, last + 1)\n",
        LOST,
    ),
    # -- positions
    Mutant(
        "ids of clients are unsigned",
        "managed_ledger/position.py",
        "return value - 2**64 if value >= 2**63 else value",
        "return value",
        POSITIONS,
    ),
    Mutant(
        "a negative entry of any size is a position",
        "managed_ledger/position.py",
        "    if ledger_id < -1 or entry_id < -1 or (ledger_id == -1 and entry_id != -1):\n",
        "    if ledger_id < -1 or (ledger_id == -1 and entry_id != -1):\n",
        POSITIONS,
    ),
    Mutant(
        "the position before the first entry of a ledger is its last entry",
        "managed_ledger/ledger_list.py",
        "return position if position.entry_id < entries else Position(position.ledger_id, entries - 1)",
        "return position if 0 <= position.entry_id < entries else Position(position.ledger_id, entries - 1)",
        POSITIONS,
    ),
    Mutant(
        "an entry behind the end of an older ledger is kept as it is",
        "managed_ledger/ledger_list.py",
        "return position if position.entry_id < entries else Position(position.ledger_id, entries - 1)",
        "return position",
        POSITIONS,
    ),
    Mutant(
        "an entry that is not confirmed may be acknowledged",
        "managed_ledger/ledger_list.py",
        "if position.ledger_id > newest or (position > last and position.entry_id >= 0):",
        "if position.ledger_id > newest:",
        POSITIONS,
    ),
    Mutant(
        "the next position skips the first entry of a ledger",
        "managed_ledger/ledger_list.py",
        "            if ledger_id != position.ledger_id:\n                entry_id = 0\n",
        "            if ledger_id != position.ledger_id:\n                entry_id = 1\n",
        POSITIONS,
    ),
    Mutant(
        "the previous position is the position",
        "managed_ledger/ledger_list.py",
        "last = min(last, position.entry_id - 1)",
        "last = min(last, position.entry_id)",
        POSITIONS,
    ),
    Mutant(
        "a backlog is one entry short",
        "managed_ledger/ledger_list.py",
        "entries = max(min(entries, position.entry_id + 1), 0)",
        "entries = max(min(entries, position.entry_id), 0)",
        POSITIONS,
    ),
    # -- acknowledged ranges
    Mutant(
        "ranges that touch are not joined",
        "managed_ledger/ack_ranges.py",
        "low = bisect_left(lasts, first - 1)",
        "low = bisect_left(lasts, first)",
        POSITIONS,
    ),
    Mutant(
        "a range swallows the one behind it",
        "managed_ledger/ack_ranges.py",
        "            last = max(last, lasts[high - 1])\n",
        "            last = max(last, lasts[-1])\n",
        POSITIONS,
    ),
    Mutant(
        "a range that the mark-delete position reaches into goes as a whole",
        "managed_ledger/ack_ranges.py",
        "gone = bisect_right(ledger.lasts, position.entry_id)",
        "gone = bisect_right(ledger.firsts, position.entry_id)",
        POSITIONS,
    ),
    Mutant(
        "ranges are counted from their second entry on",
        "managed_ledger/ack_ranges.py",
        "min(last, limit)) - first + 1",
        "min(last, limit)) - first",
        POSITIONS,
    ),
    # -- cursors
    Mutant(
        "an ack survives a seek",
        "managed_ledger/cursors/cursor.py",
        "        self._ranges.clear()\n        self._batches.clear()\n        self.mark_delete_position = ",
        "        self._batches.clear()\n        self.mark_delete_position = ",
        CURSORS,
    ),
    Mutant(
        "an ack of a batch's index survives a seek",
        "managed_ledger/cursors/cursor.py",
        "        self._ranges.clear()\n        self._batches.clear()\n        self.mark_delete_position = ",
        "        self._ranges.clear()\n        self.mark_delete_position = ",
        CURSORS,
    ),
    Mutant(
        "a seek begins one entry late",
        "managed_ledger/cursors/cursor.py",
        "        self.mark_delete_position = self.mark_delete_before(position, keeps_trimmed=keeps_trimmed)\n",
        "        self.mark_delete_position = position\n",
        CURSORS,
    ),
    Mutant(
        "a cumulative ack goes back",
        "managed_ledger/cursors/cursor.py",
        "        if position <= self.mark_delete_position:\n            return False\n"
        "        self.mark_delete_position = position",
        "        if position == self.mark_delete_position:\n            return False\n"
        "        self.mark_delete_position = position",
        CURSORS,
    ),
    Mutant(
        "a cumulative ack is not clamped to what there is",
        "managed_ledger/cursors/cursor.py",
        "position = min(self._ledgers.floor(position), self._ledgers.last_confirmed)",
        "position = min(position, self._ledgers.last_confirmed)",
        CURSORS,
    ),
    Mutant(
        "entries that there are not are acknowledged",
        "managed_ledger/cursors/cursor.py",
        "            if not self._exists(position):\n"
        "                continue  # an entry that does not exist (any more): nothing to consume\n",
        "",
        CURSORS,
    ),
    Mutant(
        "the index acks of a batch do not add up",
        "managed_ledger/cursors/cursor.py",
        "(everything if former_mask is None else former_mask) & mask_of(ack_set) & everything",
        "mask_of(ack_set) & everything",
        CURSORS,
    ),
    Mutant(
        "a batch of which everything is acknowledged stays open",
        "managed_ledger/cursors/cursor.py",
        "        if remaining == 0:\n            return self.delete([position])\n",
        "",
        CURSORS,
    ),
    Mutant(
        "the read position stays behind a cumulative ack",
        "managed_ledger/cursors/cursor.py",
        "        if self.read_position <= self.mark_delete_position:  # rule 2\n"
        "            self.read_position = self._ledgers.next_position(self.mark_delete_position)\n",
        "",
        CURSORS,
    ),
    Mutant(
        "acknowledged runs are joined within a ledger only",
        "managed_ledger/cursors/cursor.py",
        "            following = self._ledgers.next_position(self.mark_delete_position)\n            last = ",
        "            at = self.mark_delete_position\n            following = Position(at.ledger_id, at.entry_id + 1)\n"
        "            last = ",
        POSITIONS,
    ),
    Mutant(
        "a rewind goes on where it was",
        "managed_ledger/cursors/cursor.py",
        '        """Read again from the first entry that is not consumed."""\n'
        "        self.read_position = self._ledgers.next_position(self.mark_delete_position)\n",
        '        """Read again from the first entry that is not consumed."""\n',
        CURSORS,
    ),
    Mutant(
        "a read skips the entry behind it",
        "managed_ledger/cursors/cursor.py",
        '        """Everything up to *position* has been read."""\n'
        "        self.read_position = self._ledgers.next_position(position)\n",
        '        """Everything up to *position* has been read."""\n'
        "        self.read_position = self._ledgers.next_position(self._ledgers.next_position(position))\n",
        CURSORS,
    ),
    # -- retention
    Mutant(
        "a ledger is trimmed whose last entry a cursor still needs",
        "managed_ledger/retention.py",
        "position < (ledger.ledger_id, ledger.entries - 1)",
        "position < (ledger.ledger_id, ledger.entries - 2)",
        RETENTION,
    ),
    Mutant(
        "the fastest cursor decides what is trimmed",
        "managed_ledger/cursors/cursor_set.py",
        "return min(positions) if positions else None",
        "return max(positions) if positions else None",
        LEDGER,
    ),
    Mutant(
        "what a cursor has not stored yet is trimmed",
        "managed_ledger/cursors/cursor_set.py",
        "positions = [cursor.persisted_mark_delete_position for cursor in self.by_name.values()]",
        "positions = [cursor.mark_delete_position for cursor in self.by_name.values()]",
        FAULTS,
    ),
    Mutant(
        "the youngest ledgers go first",
        "managed_ledger/retention.py",
        "        if not (expired or is_above_size):\n            break\n",
        "        if not (expired or is_above_size):\n            continue\n",
        RETENTION,
    ),
    Mutant(
        "an open ledger is full before its entries are",
        "managed_ledger/retention.py",
        "return (entries >= rule.entries_max or size_bytes >= rule.bytes_max) and age_ms >= rule.age_min_ms",
        "return entries >= rule.entries_max or size_bytes >= rule.bytes_max",
        RETENTION,
    ),
    # -- appending and taking over
    Mutant(
        "one context too few comes out",
        "managed_ledger/writing/appending.py",
        "        count = up_to - first + 1\n",
        "        count = max(up_to - first, 0)\n",
        LEDGER,
    ),
    Mutant(
        "what waits again after a failure comes behind what is newer",
        "managed_ledger/writing/appending.py",
        "self._queued[:0] = self._pending  # rule 1",
        "self._queued.extend(self._pending)  # rule 1",
        FAULTS,
    ),
    Mutant(
        "what was sent to a failed ledger is sent in the wrong order",
        "managed_ledger/writing/appending.py",
        "self._queued[:0] = self._pending  # rule 1",
        "self._queued[:0] = self._pending[::-1]  # rule 1",
        FAULTS,
    ),
    Mutant(
        "a former ledger's answers count for the present one",
        "managed_ledger/writing/writing.py",
        "        if handle is not self._lifecycle.present:\n            return\n        stored",
        "        stored",
        STEPS,
    ),
    Mutant(
        "a takeover leaves the last recovered entry out",
        "managed_ledger/ledgers/lifecycle.py",
        "        last.entries = handle.last_add_confirmed + 1\n",
        "        last.entries = max(handle.last_add_confirmed, 0)\n",
        LEDGER,
    ),
    Mutant(
        "those who wait for entries are not woken",
        "managed_ledger/writing/writing.py",
        "        for callback in list(self._watchers):\n            attempt_now",
        "        for callback in list(self._watchers)[1:]:\n            attempt_now",
        STEPS,
    ),
    Mutant(
        "what was queued behind the window stays there",
        "managed_ledger/writing/appending.py",
        "            return Step.SEND if self._queued else Step.NOTHING\n",
        "            return Step.NOTHING\n",
        FAULTS,
    ),
    Mutant(
        "a read goes past the last confirmed entry",
        "managed_ledger/reading/reading.py",
        "        last = min(last, position.entry_id + max_entries - 1)\n",
        "        last = position.entry_id + max_entries - 1\n",
        STEPS,
    ),
    # -- cursors on disk
    Mutant(
        "a cursor is restored from its node although its ledger is newer",
        "managed_ledger/cursors/cursor_store.py",
        "        if state is not None:\n"
        "            return snapshot_of(Position(state.ledgerId, state.entryId), state)\n",
        "",
        LEDGER,
    ),
    Mutant(
        "a cursor's node is switched before its new ledger has the state",
        "managed_ledger/cursors/cursor_store.py",
        "            await handle.add(state)\n"
        "            self._check_not_abandoned()\n"
        "            await self._write_node(snapshot, handle.ledger_id, whole=False)\n",
        "            self._check_not_abandoned()\n"
        "            await self._write_node(snapshot, handle.ledger_id, whole=False)\n"
        "            await handle.add(state)\n",
        STEPS,
    ),
    Mutant(
        "a ledger that a cursor begins is left where the topic is lost meanwhile",
        "managed_ledger/cursors/cursor_store.py",
        "            await asyncio.shield(self._beginning)  # rule 6\n",
        "            await self._beginning\n",
        FAULTS,
    ),
    Mutant(
        "a cursor names the ledger that it was beginning when the topic was lost",
        "managed_ledger/cursors/cursor_store.py",
        "            await handle.add(state)\n            self._check_not_abandoned()\n",
        "            await handle.add(state)\n",
        FAULTS,
    ),
    Mutant(
        "a former owner overwrites the node of a cursor",
        "managed_ledger/cursors/cursor_store.py",
        "        await self._check_owner()\n        await self._put_into_node(snapshot)\n",
        "        await self._put_into_node(snapshot)\n",
        FAULTS,
    ),
    Mutant(
        "a cursor's node is written over that the next owner wrote between question and reading",
        "managed_ledger/cursors/cursor_store.py",
        "                value = await self._record.read()\n                await self._check_owner()\n",
        "                await self._check_owner()\n                value = await self._record.read()\n",
        FAULTS,
    ),
    Mutant(
        "a former owner's late write takes the topic from the new one",
        "managed_ledger/cursors/cursor_store.py",
        "                if value is None:\n                    raise\n",
        "                raise\n",
        FAULTS,
    ),
    Mutant(
        "a terminated topic is opened and not taken over",
        "managed_ledger/ledger.py",
        "self._lifecycle.change_record()  # so that",
        "asyncio.sleep(0)  # so that",
        FAULTS,
    ),
    Mutant(
        "ranges of a restored cursor are forgotten",
        "managed_ledger/cursors/cursor_set.py",
        "state.restore(snapshot.ranges, snapshot.batches, snapshot.properties.items())",
        "state.restore([], snapshot.batches, snapshot.properties.items())",
        LEDGER,
    ),
    Mutant(
        "a cold read that a rewind overtook is delivered",
        "managed_ledger/cursors/managed_cursor.py",
        "            if generation != self._read_generation or not entries:\n",
        "            if not entries:\n",
        LEDGER,
    ),
    Mutant(
        "a change while a cursor is stored counts as stored",
        "managed_ledger/cursors/managed_cursor.py",
        "            version = self._state.version\n            await self._persist(self._snapshot())\n"
        "            self._persisted_version = version\n",
        "            await self._persist(self._snapshot())\n"
        "            self._persisted_version = self._state.version\n",
        STEPS,
    ),
    Mutant(
        "a seek is not stored before it is confirmed",
        "managed_ledger/cursors/managed_cursor.py",
        "            await self._persist(snapshot)\n            # Stored first",
        "            # Stored first",
        STEPS,
    ),
    Mutant(
        "a conflict is not taken for another owner",
        "managed_ledger/records/versioned_record.py",
        "        if node is None or node.version != self.version + 1 or node.value not in self._doubtful:\n",
        "        if node is None:\n",
        STEPS,
    ),
    Mutant(
        "the cache gives entries behind a gap",
        "managed_ledger/reading/entry_cache.py",
        "            if data is None:\n                break\n",
        "            if data is None:\n                continue\n",
        STEPS,
    ),
    Mutant(
        "a trim that is asked for goes by what was stored before",
        "managed_ledger/ledger.py",
        "            await cursor.flush()\n        await self.trim()\n",
        "            pass\n        await self.trim()\n",
        ("tests/unit/managed_ledger/test_ledger.py",),
    ),
    Mutant(
        "a prepared ledger comes behind one with a higher id",
        "managed_ledger/ledgers/preparing.py",
        "        return self.ahead.result().ledger_id > max(ledger_ids, default=-1)\n",
        "        return True\n",
        ("tests/unit/managed_ledger/ledgers/test_preparing.py",),
    ),
    Mutant(
        "a ledger that was closed when it was read is believed to be as it was",
        "managed_ledger/ledgers/preparing.py",
        "                if not answer.metadata.is_closed:\n                    records",
        "                if True:\n                    records",
        ("tests/unit/managed_ledger/ledgers/test_preparing.py",),
    ),
    Mutant(
        "what was read of the ledgers of cursors is not used",
        "managed_ledger/ledger.py",
        "NOTHING_KNOWN if prepared is None else prepared.open",
        "NOTHING_KNOWN",
        ("tests/unit/managed_ledger/ledgers/test_preparing.py",),
    ),
    Mutant(
        "a new ledger is not told of",
        "managed_ledger/ledger.py",
        "        self.changes.note_ledgers(self.name)\n        self.trim_if_due()\n\n    @property",
        "        self.trim_if_due()\n\n    @property",
        ("tests/unit/managed_ledger/ledgers/test_preparing.py",),
    ),
    Mutant(
        "a ledger that was prepared for nothing stays",
        "managed_ledger/ledgers/preparing.py",
        "        await handle.abandon()\n        if await attempt(",
        "        await handle.abandon()\n        return\n        if await attempt(",
        ("tests/unit/managed_ledger/ledgers/test_preparing.py",),
    ),
    Mutant(
        "the end of an empty topic names no ledger",
        "managed_ledger/writing/writing.py",
        "            await self._close_present(for_ever=True)\n",
        "            await self._close_present()\n",
        ("tests/unit/managed_ledger/test_ledger.py",),
    ),
    Mutant(
        "a cursor's ledger that could not be deleted is forgotten",
        "managed_ledger/cursors/cursor_store.py",
        "                self._undeleted[dropped_id] = None\n",
        "",
        ("tests/unit/managed_ledger/test_ledger_under_faults.py", "-k", "goes_with_the_next_one"),
    ),
)
