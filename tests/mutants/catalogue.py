"""Mistakes that a bookie could make, as patches: the suite has to see each of them.

A mutant replaces one place of one file; *old* must stand there exactly once, so a mutant whose place is gone fails
loudly instead of proving nothing. *tests* are arguments of pytest: the least that must catch it.
"""

from typing import NamedTuple

SCHEDULES = "tests/crash/test_storage_schedules.py"
UNIT = "tests/unit/bookie"


class Mutant(NamedTuple):
    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


def _schedule(number: str) -> tuple[str, ...]:
    return (SCHEDULES, "-k", number)


MUTANTS = (
    # -- ledgers that are older than the bookie
    Mutant(
        "a new bookie takes the adds of older ledgers",
        "bookie/serving/request_rules.py",
        "        return EREADONLY if ledger_id < self.first_ledger_id else OK\n",
        "        return OK\n",
        ("tests/unit/bookie/test_bookie.py",),
    ),
    # -- metrics
    Mutant(
        "what the read cache does not have counts as read from it",
        "bookie/storage/read_cache.py",
        "        if entry is not None:\n            self.hits += 1\n",
        "        self.hits += 1\n",
        (f"{UNIT}/test_parts.py",),
    ),
    # -- journal
    Mutant(
        "an add is answered before its fsync",
        "bookie/storage/journal/writer.py",
        "            began = now()\n            self._sync()\n",
        "            began = now()\n",
        _schedule("r_b17_who"),
    ),
    Mutant(
        "a new journal file's name is not synced",
        "bookie/storage/journal/writer.py",
        "            file.sync()\n            self._files.sync_directory(self._directory)\n",
        "            file.sync()\n",
        _schedule("r_b15 or r_b17"),
    ),
    Mutant(
        "a refused group is not cut off",
        "bookie/storage/journal/writer.py",
        "        self._file.truncate(end.offset)\n",
        "",
        _schedule("r_b17_a_group"),
    ),
    Mutant(
        "groups are written behind what could not be cut off",
        "bookie/storage/journal/writer.py",
        "            if not self._is_cut:\n",
        "            if False:\n",
        ("tests/unit/bookie/storage/journal/test_journal_safety.py",),
    ),
    Mutant(
        "the mark moves into a group that may be cut off",
        "bookie/storage/journal/writer.py",
        "        self.written_bytes += end - start\n",
        "        self.written_bytes += end - start\n        self.mark = Mark(file_id, end)\n",
        (f"{UNIT}/storage/journal/test_journal_safety.py",),
    ),
    Mutant(
        "what was put before a refusal was known is written behind it",
        "bookie/storage/journal/writer.py",
        "while late < len(puts) and puts[late][0] <= self._refused_number:",
        "while late < 0:",
        (f"{UNIT}/storage/journal/test_journal_safety.py",),
    ),
    Mutant(
        "a journal that failed goes on",
        "bookie/storage/journal/writer.py",
        "        if error is not None:\n            if not self._failed:",
        "        if error is not None:\n            for _, (_, _, done, argument) in puts:\n"
        "                done(argument, None)\n            if not self._failed:",
        _schedule("r_b32"),
    ),
    Mutant(
        "the key of a refused group is not written again",
        "bookie/serving/request_rules.py",
        "        for ledger in self.ledgers:\n            ledger.is_key_journaled = False",
        "        pass",
        _schedule("r_b17_what"),
    ),
    # -- replay
    Mutant(
        "the checksum of a group is not looked at",
        "bookie/storage/journal/format.py",
        "        return bool(crc == _group_crc(self._file_id, start, durable, length, group))",
        "        return bool(crc >= 0 and len(group) >= 0)",
        (f"{UNIT}/storage/journal/test_journal.py",),
    ),
    Mutant(
        "damage in the middle of a journal counts as its end",
        "bookie/storage/journal/format.py",
        '        """Check rule 3. Raises Corruption."""\n',
        '        """Check rule 3. Raises Corruption."""\n        return\n',
        _schedule("r_b14"),
    ),
    Mutant(
        "replay goes on with the next file after a torn one",
        "bookie/storage/journal/replay.py",
        "                if torn is not None:\n                    raise",
        "                if torn is None and not torn and count < 0:\n                    raise",
        (f"{UNIT}/storage/journal/test_journal.py",),
    ),
    Mutant(
        "a missing journal file is passed over",
        "bookie/storage/journal/replay.py",
        "        if later != earlier + 1:",
        "        if later < earlier:",
        (f"{UNIT}/storage/journal/test_journal.py",),
    ),
    Mutant(
        "replay forgets fences",
        "bookie/startup.py",
        "            ledger.fenced = True\n",
        "",
        _schedule("r_b29 or r_b3"),
    ),
    Mutant(
        "replay forgets explicit LACs",
        "bookie/startup.py",
        "            ledger.see_explicit_lac(record.blob())\n",
        "            pass\n",
        _schedule("r_b25"),
    ),
    Mutant(
        "what was replayed is not flushed before the journal is let go",
        "bookie/startup.py",
        'storage then holds everything. Raises OSError."""\n        self._flush()\n',
        'storage then holds everything. Raises OSError."""\n',
        _schedule("r_b30 or r_b10"),
    ),
    Mutant(
        "journal ids come from the clock",
        "bookie/startup.py",
        "    return newest + 1 if newest else wall_ms + 1\n",
        "    return wall_ms + 1 if newest != wall_ms + 1 else newest + 1\n",
        _schedule("r_b16"),
    ),
    Mutant(
        "damage that was passed over leaves no doubt",
        "bookie/startup.py",
        "        if problems:\n",
        "        if problems and not settings.skip_invalid_journal:\n",
        _schedule("r_b34"),
    ),
    Mutant(
        "the journal file that the mark names is removed",
        "bookie/storage/checkpoint.py",
        "if file_id < mark.file_id]\n    for file_id in old[: max(len(old) - keep, 0)]:",
        "if file_id <= mark.file_id]\n    for file_id in old:",
        _schedule("r_b6 or r_b4"),
    ),
    # -- flush
    Mutant(
        "the mark is that of the end of a flush",
        "bookie/storage/checkpoint.py",
        "        self._storage.write_marks(marks)\n",
        "        self._storage.write_marks([journal.mark for journal in self._journals])\n",
        _schedule("r_b2_"),
    ),
    Mutant(
        "the mark is written before the flush",
        "bookie/storage/checkpoint.py",
        "        self._storage.flush(half, rows, self._pause, self._clock.monotonic, marks)\n"
        "        self._storage.write_marks(marks)\n",
        "        self._storage.write_marks(marks)\n"
        "        self._storage.flush(half, rows, self._pause, self._clock.monotonic, marks)\n",
        _schedule("r_b1_"),
    ),
    Mutant(
        "a failed flush forgets its marks",
        "bookie/storage/checkpoint.py",
        "        if self._marks is None:\n            self._marks =",
        "        if self._marks is None or not self._closed:\n            self._marks =",
        _schedule("r_b4"),
    ),
    Mutant(
        "a failed flush forgets its entries",
        "bookie/storage/write_cache.py",
        "        if not self._flushing:\n            self._flushing, self._taking",
        "        if True:\n            self._flushing, self._taking",
        _schedule("r_b4 or r_b20"),
    ),
    Mutant(
        "a failed flush forgets the rows of ledgers",
        "bookie/storage/checkpoint.py",
        "        self._ledgers.not_written(rows)  # rule 2\n",
        "",
        _schedule("r_b4_the_rows"),
    ),
    Mutant(
        "a failed flush is retried whatever the error",
        "bookie/storage/checkpoint.py",
        "        if is_no_space(error):\n",
        "        if is_no_space(error) or True:\n",
        _schedule("r_b4_a_flush_that_failed_for_another or r_b23"),
    ),
    Mutant(
        "two flushes at a time",
        "bookie/storage/checkpoint.py",
        "        if self._running:\n",
        "        if self._running and self._closed:\n",
        _schedule("r_b20"),
    ),
    Mutant(
        "locations are published before their log is synced",
        "bookie/storage/ledger_storage.py",
        '        directory.logs.sync()\n        times.lap("sync")\n        done = 0\n',
        "        done = 0\n",
        _schedule("r_b21"),
    ),
    Mutant(
        "what is flushed of a ledger whose row a crash took is called absent",
        "bookie/startup.py",
        "        ledger.is_tail_known = False\n        return ledger\n",
        "        return ledger\n",
        _schedule("r_b21"),
    ),
    Mutant(
        "the index is not synced before the mark",
        "bookie/storage/ledger_storage.py",
        "                if own or own_rows or is_noted:\n                    directory.index.sync()\n",
        "",
        _schedule("r_b1_ or r_b9"),
    ),
    Mutant(
        "rows are flushed only along with entries",
        "bookie/storage/ledger_storage.py",
        "                if own_rows:\n",
        "                if own_rows and own:\n",
        _schedule("r_b3"),
    ),
    Mutant(
        "a log whose append failed is written on",
        "bookie/storage/entry_log/files.py",
        "                first = stop\n        except OSError:\n            self._abandon()\n            raise\n",
        "                first = stop\n        except OSError:\n            raise\n",
        _schedule("r_b5"),
    ),
    Mutant(
        "a rolled log is not synced",
        "bookie/storage/entry_log/files.py",
        "        self._file.sync()\n"
        "        self._file.write_at(fmt.SEAL_OFFSET, fmt.encode_seal(map_offset, len(self._bytes_of_ledgers)))\n"
        "        self._file.sync()\n",
        "        self._file.write_at(fmt.SEAL_OFFSET, fmt.encode_seal(map_offset, len(self._bytes_of_ledgers)))\n",
        _schedule("r_b21_the_index or r_b28"),
    ),
    # -- index, ledgers, reads
    Mutant(
        "what was read and did not fit passes for a second reader",
        "bookie/storage/entry_log/files.py",
        "begin + spans[-1][1] - fmt.SIZE.size)",
        "begin + len(data))",
        (f"{UNIT}/storage/test_checkpoint.py",),
    ),
    Mutant(
        "a thousand places are looked up for a few large entries",
        "bookie/storage/index.py",
        "if within_bytes is not None and pairs and not _is_within(pairs[0][1], pairs[-1][1], within_bytes):",
        "if False:",
        ("tests/conformance/test_bookie_index.py",),
    ),
    Mutant(
        "a large entry is read to be left out",
        "bookie/storage/ledger_storage.py",
        "            if size > count * max(max_bytes - size, _SMALL_BYTES):\n",
        "            if False:\n",
        (f"{UNIT}/storage/test_limits.py",),
    ),
    Mutant(
        "what a location leads to is not checked",
        "bookie/storage/entry_log/files.py",
        "        if size < fmt.ENTRY_BYTES_MIN or (found_ledger_id, found_entry_id) != (ledger_id, entry_id):\n",
        "        if size < fmt.ENTRY_BYTES_MIN:\n",
        _schedule("r_b21"),
    ),
    Mutant(
        "what the second of a run leads to is not checked",
        "bookie/storage/entry_log/files.py",
        "                    and found_entry_id == entry_id\n",
        "",
        ("tests/unit/bookie/test_parts.py", "-k", "another_entry"),
    ),
    Mutant(
        "a fenced ledger takes a run of adds",
        "bookie/serving/request_rules.py",
        "self._ledger_of_run(ledger_id, key, run_word == RECOVERY_ADD)",
        "self._ledger_of_run(ledger_id, key, True)",
        (f"{UNIT}/test_bookie.py", "-k", "a_run_of_adds"),
    ),
    Mutant(
        "a fenced ledger takes a run of adds of the third protocol",
        "bookie/serving/request_rules.py",
        "self._ledger_of_run(ledger_id, key, False)",
        "self._ledger_of_run(ledger_id, key, True)",
        ("tests/property/test_add_runs.py", "-k", "a_run_of_adds"),
    ),
    Mutant(
        "bytes behind an entry belong to it",
        "magnetar_core/bookkeeper/wire/codec_v3.py",
        "        or size != _known_varint(end - body_at)\n",
        "",
        ("tests/property/test_add_runs.py", "-k", "another_size"),
    ),
    Mutant(
        "an add like the one before is taken under another key",
        "magnetar_core/bookkeeper/wire/codec_v3.py",
        "            or head[self._entry_end : self._ids_at] != self._behind\n",
        "",
        ("tests/property/test_add_runs.py", "-k", "form_of_an_add_before"),
    ),
    Mutant(
        "an add like the one before is taken under another number than its entry's",
        "magnetar_core/bookkeeper/wire/codec_v3.py",
        "            or entry[1:] != self._rest\n",
        "",
        ("tests/property/test_add_runs.py", "-k", "form_of_an_add_before"),
    ),
    Mutant(
        "adds like the one before tell an LAC of their own",
        "magnetar_core/bookkeeper/wire/codec_v3.py",
        "        return entry_id, last_add_confirmed, self._reply",
        "        return entry_id, last_add_confirmed - 1, self._reply",
        ("tests/property/test_add_runs.py", "-k", "as_long_as_each_other"),
    ),
    Mutant(
        "an add like the one before may have a transaction that ends early",
        "magnetar_core/bookkeeper/wire/codec_v3.py",
        "            or int.from_bytes(txn_id) & self._ends != self._where\n",
        "",
        ("tests/property/test_add_runs.py", "-k", "no_transaction_of_another_length"),
    ),
    Mutant(
        "a read of the third protocol is taken whatever length it tells",
        "magnetar_core/bookkeeper/wire/codec_v3.py",
        "    if header[0] != 5 + len(txn_id) or read[0] != 2 + len(ledger) + len(entry):\n",
        "    if header[0] != 5 + len(txn_id):\n",
        ("tests/property/test_add_runs.py", "-k", "plain_read"),
    ),
    Mutant(
        "an unreadable entry is called absent",
        "bookie/storage/ledger_storage.py",
        "            except FileNotFoundError:\n                if is_last_try:\n                    raise\n",
        "            except (FileNotFoundError, Corruption):\n                if is_last_try:\n"
        "                    break\n",
        _schedule("r_b13 or r_b21"),
    ),
    Mutant(
        "the row of a ledger forgets its fence",
        "bookie/storage/ledgers.py",
        "LedgerData(exists=True, fenced=self.fenced,",
        "LedgerData(exists=True, fenced=False,",
        _schedule("r_b29"),
    ),
    Mutant(
        "an older explicit LAC replaces a newer one",
        "bookie/storage/ledgers.py",
        "        if not self.explicit_lac or last_add_confirmed >= explicit_lac_of(self.explicit_lac):\n",
        "        if last_add_confirmed >= -1:\n",
        _schedule("r_b25"),
    ),
    Mutant(
        "any key fits",
        "bookie/serving/request_rules.py",
        '        if ledger.master_key not in (b"", _NO_KEY) or len(master_key) != MASTER_KEY_BYTES:\n',
        "        if len(master_key) != MASTER_KEY_BYTES:\n",
        _schedule("r_b9"),
    ),
    Mutant(
        "a fenced ledger takes adds after a restart",
        "bookie/serving/request_rules.py",
        "        if ledger is not None and ledger.fenced:\n",
        "        if ledger is not None and ledger.fenced and not ledger.is_fence_durable:\n",
        _schedule("r_b29"),
    ),
    Mutant(
        "in limbo an entry is called absent",
        "bookie/serving/request_rules.py",
        "        return EUNKNOWNLEDGERSTATE if ledger.limbo else ENOENTRY",
        "        return ENOENTRY",
        _schedule("r_l4"),
    ),
    # -- garbage collection
    Mutant(
        "one proof is enough to delete a ledger",
        "bookie/maintenance/garbage/rules.py",
        "gone = sorted(ledger_id for ledger_id in absent if ledger_id in self._absent)",
        "gone = sorted(absent)",
        (f"{UNIT}/maintenance/garbage/test_rules.py",),
    ),
    Mutant(
        "a record that cannot be read counts as absent",
        "bookie/maintenance/garbage/deleted_ledgers.py",
        "                absent.append(ledger_id)\n            except Corruption as error:\n",
        "                absent.append(ledger_id)\n            except Corruption as error:\n"
        "                absent.append(ledger_id)\n",
        (f"{UNIT}/maintenance/garbage/test_rules.py",),
    ),
    Mutant(
        "an empty listing deletes everything",
        "bookie/maintenance/garbage/rules.py",
        "    if listed == 0 and limits.refuse_empty and local:\n",
        "    if listed == 0 and limits.refuse_empty and local < 0:\n",
        (f"{UNIT}/maintenance/garbage/test_rules.py",),
    ),
    Mutant(
        "a ledger with entries to flush is deleted",
        "bookie/maintenance/garbage/ledger_removal.py",
        "                if self._cache.has_ledger(ledger_id) or ledger.fence_waiters is not None:\n",
        "                if ledger.fence_waiters is not None:\n",
        (f"{UNIT}/maintenance/garbage/test_rules.py",),
    ),
    Mutant(
        "a deletion that failed forgets what was to be written",
        "bookie/storage/ledgers.py",
        "        self._ledgers.setdefault(ledger.ledger_id, ledger)\n        self._dirty.add(ledger.ledger_id)\n",
        "        self._ledgers.setdefault(ledger.ledger_id, ledger)\n",
        _schedule("r_l20"),
    ),
    Mutant(
        "the fence of a deleted ledger is forgotten by a restart",
        "bookie/storage/ledger_storage.py",
        "            if own_tombstones or self._files.exists(path):\n",
        "            if own_tombstones and self._files.exists(path):\n",
        _schedule("r_l20"),
    ),
    Mutant(
        "a log with one dead ledger is dead",
        "bookie/maintenance/garbage/rules.py",
        "if not any(ledger_id in ledgers for ledger_id in usage.bytes_of_ledgers)]",
        "if not all(ledger_id in ledgers for ledger_id in usage.bytes_of_ledgers)]",
        _schedule("r_b11"),
    ),
    Mutant(
        "a stale header is believed",
        "bookie/storage/entry_log/files.py",
        "        if fmt.HEADER_BYTES + sum(ledgers.values()) != header.map_offset:\n",
        "        if fmt.HEADER_BYTES > header.map_offset:\n",
        _schedule("r_b12"),
    ),
    Mutant(
        "a log without a header counts as damaged for ever",
        "bookie/maintenance/garbage/compaction.py",
        "            return LogUsage(log_id, file_bytes, {}, False)\n",
        "            raise\n",
        _schedule("r_b12"),
    ),
    # -- compaction
    Mutant(
        "a damaged log is removed without a look at the index",
        "bookie/maintenance/garbage/compaction.py",
        "        if not usage.is_whole and await self._is_referred_to(number, log_id):\n",
        "        if not usage.is_whole and not usage.bytes_of_ledgers:\n",
        _schedule("r_b24"),
    ),
    Mutant(
        "one damaged log ends the round",
        "bookie/maintenance/garbage/compaction.py",
        "        except Corruption as error:\n"
        "            self._leave(directory, log_id, error)\n        except OSError",
        "        except OSError",
        _schedule("r_b24"),
    ),
    Mutant(
        "the copy is not synced before it gets its name",
        "bookie/storage/entry_log/compacting.py",
        "len(self.bytes_of_ledgers)))\n        file.sync()\n",
        "len(self.bytes_of_ledgers)))\n",
        _schedule("r_b11"),
    ),
    Mutant(
        "the old log goes before the new locations are synced",
        "bookie/storage/ledger_storage.py",
        "        self.index.put_notes({log_id: None})\n        self.index.sync()\n",
        "        self.index.put_notes({log_id: None})\n",
        _schedule("r_b11"),
    ),
    Mutant(
        "the name of the copy is not synced",
        "bookie/storage/entry_log/compacting.py",
        "self._path + _COMPACTING, self._path)\n        self._files.sync_directory(self._directory)\n",
        "self._path + _COMPACTING, self._path)\n",
        _schedule("r_b11"),
    ),
    Mutant(
        "entries that were written again are moved too",
        "bookie/storage/entry_log/compacting.py",
        "            if now and fmt.split_location(now)[0] == self._old_log_id:\n",
        "            if now:\n",
        (f"{UNIT}/maintenance/garbage/test_compaction.py", "-k", "written_again"),
    ),
    # -- files that are gone
    Mutant(
        "a log that is missing is not missed",
        "bookie/storage/log_check.py",
        "            if note is not None and note.location:\n",
        "            if note is not None and not note.location:\n",
        (f"{UNIT}/maintenance/test_lost_logs.py", "-k", "named_by_topic"),
    ),
    Mutant(
        "another log is taken for the one that was here",
        "bookie/storage/known.py",
        "        if ids == [note.ledger_id, note.entry_id] and offset + size <= size_bytes:\n",
        "        if ids and offset + size <= size_bytes:\n",
        (f"{UNIT}/maintenance/test_lost_logs.py", "-k", "named_by_topic"),
    ),
    Mutant(
        "what a log had is absent before anybody was told",
        "bookie/maintenance/lost_logs.py",
        "        try:\n            await self._reports.post(damage, self._clock.wall_ms())\n",
        "        await self._flusher.run(partial(self._storage.forget_entries, ledger_id, lost))\n"
        "        try:\n            await self._reports.post(damage, self._clock.wall_ms())\n",
        (f"{UNIT}/maintenance/test_lost_logs.py", "-k", "until_it_is_told"),
    ),
    Mutant(
        "what other bookies may have counts as lost",
        "bookie/maintenance/lost_logs.py",
        '        except RepairUnavailable as error:\n            log.info("%s", error)\n            return None\n',
        '        except RepairUnavailable as error:\n            log.info("%s", error)\n            return True\n',
        (f"{UNIT}/maintenance/test_lost_logs.py", "-k", "other_bookies_have"),
    ),
    Mutant(
        "the end of an open ledger is given up while others have it",
        "bookie/maintenance/lost_logs.py",
        "return None if may_be_written and set(last.ensemble) != {self._bookie_id} else True",
        "return True",
        (f"{UNIT}/maintenance/test_lost_logs.py", "-k", "nobody_has"),
    ),
    Mutant(
        "what is lost is told with each look again",
        "bookie/maintenance/integrity.py",
        "        if lost <= self._lost.get(ledger_id, 0):\n",
        "        if not lost:\n",
        (f"{UNIT}/maintenance/test_integrity.py", "-k", "told_once"),
    ),
    Mutant(
        "an empty database of locations is believed",
        "bookie/storage/index.py",
        "is_lost = self._ledgers.latest_sequence_number() and not self._locations.latest_sequence_number()",
        "is_lost = False",
        (f"{UNIT}/storage/test_index.py", "-k", "list_of_tables"),
    ),
    Mutant(
        "a defect in one pass ends the job",
        "bookie/maintenance/passes.py",
        "        following_s = self._again_s\n",
        "        following_s: float | None = None\n",
        (f"{UNIT}/maintenance/test_passes.py", "-k", "defect"),
    ),
    Mutant(
        "a scrub that has failed begins anew",
        "bookie/maintenance/scrub.py",
        "self._start_over() if place is None or place.ledger_id == _END_LEDGER_ID else place",
        "self._start_over()",
        (f"{UNIT}/maintenance/test_scrub.py", "-k", "continued"),
    ),
    Mutant(
        "of what is lost only the last entry is told",
        "bookie/maintenance/integrity.py",
        "ranges = joined((*ranges, (entry_id, entry_id)))",
        "ranges = joined(((entry_id, entry_id),))",
        (f"{UNIT}/maintenance/test_integrity.py", "-k", "nobody_has"),
    ),
    Mutant(
        "the note of a log outlives it",
        "bookie/maintenance/garbage/compaction.py",
        "        await self._flusher.run(partial(directory.forget_log, log_id))\n",
        "",
        (f"{UNIT}/maintenance/test_lost_logs.py", "-k", "garbage_collection"),
    ),
    Mutant(
        "a rebuild does not miss a log",
        "bookie/maintenance/rebuild/offline.py",
        "            if not bad.is_unreadable:\n",
        "            if bad.is_unreadable:\n",
        (f"{UNIT}/maintenance/test_lost_logs.py", "-k", "named_by_topic"),
    ),
    Mutant(
        "an index that is older than the marks is served",
        "bookie/storage/known.py",
        "        if note < mark:\n",
        "        if note > mark and not there:\n",
        ("tests/crash/test_gone_files.py", "-k", "newest"),
    ),
    Mutant(
        "another bookie's ledgers are served",
        "bookie/storage/index.py",
        "        if note[_CHANGES.size :] != self._identity:\n",
        "        if note[: _CHANGES.size] == self._identity:\n",
        ("tests/crash/test_gone_files.py", "-k", "rows"),
    ),
    Mutant(
        "a journal that lost its newest groups is a torn write",
        "bookie/storage/journal/replay.py",
        "    if was_synced and end < place:\n",
        "    if was_synced and place < mark:\n",
        ("tests/crash/test_gone_files.py", "-k", "cut_anywhere"),
    ),
    Mutant(
        "a journal that ends before its mark is read",
        "bookie/storage/journal/replay.py",
        "if was_synced and header.sealed and start > header.first_offset and",
        "if was_synced and not header.sealed and start > header.first_offset and",
        (f"{UNIT}/storage/journal/test_journal_safety.py", "-k", "mark"),
    ),
    Mutant(
        "a file of ours behind a mark that is none lets it pass as Apache's",
        "bookie/storage/journal/replay.py",
        "    return header is not None and not header.sealed\n",
        "    return header is None or not header.sealed\n",
        (f"{UNIT}/storage/journal/test_journal_safety.py", "-k", "mark"),
    ),
    Mutant(
        "metadata that lost its newest changes is opened",
        "magnetar_core/bookkeeper/metadata/stores/embedded.py",
        "        if has < changes.recorded:\n",
        "        if has < 0:\n",
        ("tests/unit/magnetar_core/bookkeeper/metadata/test_embedded_files.py", "-k", "newest_changes"),
    ),
    # -- read-only
    Mutant(
        "a read-only bookie takes adds",
        "bookie/serving/request_rules.py",
        "        if self.read_only and not self._may_add(ledger_id, high_priority):\n            return EREADONLY\n"
        "        if ledger_id < 0 or entry_id",
        "        if ledger_id < 0 or entry_id",
        (f"{UNIT}/test_bookie.py", "-k", "forced_read_only"),
    ),
    Mutant(
        "a read-only bookie refuses fences",
        "bookie/serving/request_rules.py",
        "        if ledger_id < 0 or len(master_key) != MASTER_KEY_BYTES:\n"
        "            return EBADREQ if ledger_id < 0 else EUA, None\n",
        "        if ledger_id < 0 or self.read_only:\n            return EREADONLY, None\n",
        _schedule("r_b26"),
    ),
    Mutant(
        "the room that is kept for fences is not given up",
        "bookie/bookie.py",
        "        self._directories.give_up_reserve()\n        if isinstance(error, NoSpace):",
        "        if isinstance(error, NoSpace):",
        _schedule("r_b26"),
    ),
    Mutant(
        "an operator's reason does not survive a restart",
        "bookie/disks/mode.py",
        "            for reason, detail in self._status_files.read().items():\n"
        "                self._reasons.set(reason, detail)\n",
        "            self._status_files.read()\n",
        (f"{UNIT}/disks/test_read_only.py", "-k", "operators_reason"),
    ),
    Mutant(
        "a full disk has room again at once",
        "bookie/disks/read_only.py",
        "(limits.room_share if was_full else limits.full_share)",
        "limits.full_share",
        (f"{UNIT}/disks/test_read_only.py", "-k", "above_one_mark"),
    ),
    Mutant(
        "a pipe answers what only a person may",
        "magnetar/cli/common/options.py",
        "if sys.stdin is None or not sys.stdin.isatty():",
        "if sys.stdin is None:",
        ("tests/unit/magnetar/cli/test_bookie_cli.py", "-k", "after_a_yes"),
    ),
)
