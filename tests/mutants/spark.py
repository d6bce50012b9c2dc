"""Mistakes that the Spark source could make (see `catalogue`)."""

from typing import Final

from tests.mutants.catalogue import Mutant

UNIT = "tests/unit/connectors/spark"
BACKLOG = (f"{UNIT}/plan/test_unconsumed.py",)
FILTERS = ("tests/property/test_spark_filters.py",)

_STREAM = (f"{UNIT}/stream/test_driver.py",)
_MEASURES = (f"{UNIT}/stream/test_measures.py",)
_LIMITS = (f"{UNIT}/stream/test_limits.py",)
_SPOOL = ("tests/unit/connectors/spark/write/test_spool.py",)
_SEQUENCES = ("tests/unit/connectors/spark/write/test_sequences.py",)

_UNIT: Final = "tests/unit/connectors/spark"
_PAIRS: Final = (f"{_UNIT}/values/test_key_values.py",)
_PERMISSIVE: Final = (f"{_UNIT}/test_permissive.py",)
_PROTOBUF: Final = (f"{_UNIT}/values/test_protobuf_values.py",)
_UNITED: Final = (f"{_UNIT}/test_union_schemas.py",)
_ENCRYPTION: Final = (f"{_UNIT}/task/test_encryption.py",)
_HOSTILE: Final = (f"{_UNIT}/test_hostile.py",)
_VALUES: Final = (f"{_UNIT}/values/test_records.py",)
_ROWS: Final = ("tests/property/test_spark_rows.py",)

MUTANTS = (
    Mutant(
        "a copy of each file and pipe of a worker stays open",
        "connectors/spark/worker/socket.py",
        "            if not stat.S_ISSOCK(os.fstat(number).st_mode):\n                continue\n",
        "",
        ("tests/unit/connectors/spark/worker/test_socket.py", "-k", "copy"),
    ),
    Mutant(
        "a ledger in tiered storage is planned as if bookies had it",
        "connectors/spark/plan/cluster.py",
        "        check_on_bookies(str(part), kept, offloaded)\n",
        "",
        ("tests/unit/connectors/spark/test_reading.py", "-k", "tiered"),
    ),
    Mutant(
        "a query leaves out a ledger in tiered storage",
        "connectors/spark/stream/follower.py",
        "        check_on_bookies(view.name.full, runs, view.offloaded)\n",
        "",
        ("tests/unit/connectors/spark/stream/test_driver.py", "-k", "tiered"),
    ),
    Mutant(
        "what one bookie holds is planned while others are silent",
        "connectors/spark/stream/follower.py",
        "            held = await handle.last_recoverable_entry(is_certain=True)\n",
        "            held = await handle.last_recoverable_entry(is_certain=False)\n",
        (*_STREAM, "-k", "one_bookie"),
    ),
    Mutant(
        "what was held and is gone is planned",
        "connectors/spark/stream/follower.py",
        "        self._held = [(at, entry_id) for at, entry_id in self._held if entry_id <= held]\n",
        "",
        (*_STREAM, "-k", "held_no_more"),
    ),
    # -- options, restarts, errors
    Mutant(
        "a name of a key that a producer has made up leads out of the folder",
        "connectors/spark/task/key_folder.py",
        "        if name not in self._files:\n            return None\n",
        '        self._files.setdefault(name, next(iter(self._files.values())).parent / f"{name}{SUFFIX}")\n',
        _ENCRYPTION,
    ),
    Mutant(
        "topic and topics are united without a word",
        "connectors/spark/options/read.py",
        '    if "topic" in given and "topics" in given:\n',
        "    if False:\n",
        (f"{UNIT}/errors/test_errors.py", "-k", "given"),
    ),
    Mutant(
        "a query reads other topics over the checkpoint of the former ones",
        "connectors/spark/stream/driver.py",
        "        check_topics(self._options, StreamOffset.from_json(start))\n",
        "",
        (f"{UNIT}/stream/test_restarts.py",),
    ),
    Mutant(
        "what a broker said to an older client is told of the newest",
        "magnetar_core/topics/client_log.py",
        '        self.last_refusal()\n        self._refusal = ""\n',
        "        self.last_refusal()\n",
        ("tests/unit/magnetar_core/topics/test_client_log.py",),
    ),
    Mutant(
        "an error that no row of the page has is raised",
        "connectors/spark/source.py",
        'raise ConfigurationError(f"no topic matches topicsPattern={options.pattern}")',
        'raise ConfigurationError(f"nothing is called {options.pattern}")',
        (f"{UNIT}/errors/test_errors.py", "-k", "row"),
    ),
    # -- filters
    Mutant(
        "a filter from an entry on leaves out that entry",
        "connectors/spark/plan/filters.py",
        "        case GreaterThanOrEqual(value=int() as value):\n            return _Span(value, None)\n",
        "        case GreaterThanOrEqual(value=int() as value):\n            return _Span(value + 1, None)\n",
        FILTERS,
    ),
    Mutant(
        "a batch is left out by the key of its first message",
        "connectors/spark/plan/filters.py",
        """        if "__key" in tests and not is_batch(metadata):  # rule 3\n""",
        """        if "__key" in tests:  # rule 3\n""",
        FILTERS,
    ),
    Mutant(
        "rows before a gap are not known to the tasks behind it",
        "connectors/spark/plan/planning.py",
        "    if begin > runs[first].first:\n        before.append(",
        "    if begin > runs[first].last:\n        before.append(",
        ("tests/property/test_spark_planning.py",),
    ),
    Mutant(
        "messages of one size count as a run, whatever the length of their keys",
        "connectors/spark/batches/borders.py",
        "        positions += range(field, behind)\n",
        "        positions += range(field, field + 1)\n",
        ("tests/property/test_spark_borders.py",),
    ),
    Mutant(
        "a run is as long as the batch leaves room for",
        "connectors/spark/batches/borders.py",
        "return count if same.all() else int(same.argmin())",
        "return count",
        ("tests/property/test_spark_borders.py",),
    ),
    Mutant(
        "a ledger that was closed soon after the time hides those behind it",
        "connectors/spark/plan/times.py",
        "stored_behind = times.until_ms + times.slack_ms",
        "stored_behind = times.until_ms",
        (f"{UNIT}/plan/test_times.py",),
    ),
    # -- faults
    Mutant(
        "who has no certificate is told that messages are lost",
        "connectors/spark/plan/cluster.py",
        "        check_let_in(error)\n        text = ",
        "        text = ",
        (f"{UNIT}/errors/test_errors.py", "-k", "way_out"),
    ),
    Mutant(
        "a stream that the bookies do not let in is told that they are away",
        "connectors/spark/stream/follower.py",
        "                check_let_in(error)\n",
        "",
        _STREAM,
    ),
    Mutant(
        "what is new in a schema is left out of a stream without a word",
        "connectors/spark/stream/driver.py",
        "            self._report_unread(topic, versions[-1].version if versions else None, unread)\n",
        "            pass\n",
        _STREAM,
    ),
    Mutant(
        "columns that come while a query runs are left out unless an option says otherwise",
        "connectors/spark/source.py",
        "            has_all = self._frozen is not None and not options.columns\n",
        "            has_all = False\n",
        _STREAM,
    ),
    Mutant(
        "a query with columns of its own ends when the topic has more",
        "connectors/spark/source.py",
        "            has_all = self._frozen is not None and not options.columns\n",
        "            has_all = True\n",
        _STREAM,
    ),
    Mutant(
        "columns of a topic that joins a stream are left out without a word",
        "connectors/spark/values/value_columns.py",
        "        has_joined = bool(united) and topic not in self._newest\n",
        "        has_joined = False\n",
        (f"{UNIT}/test_union_schemas.py",),
    ),
    Mutant(
        "connections to bookies that failed are kept for the next attempt",
        "connectors/spark/task/reader.py",
        "    except EntryUnreadable as error:\n        _drop_connection(options)\n",
        "    except EntryUnreadable as error:\n",
        (f"{UNIT}/test_faults.py",),
    ),
    Mutant(
        "every bookie of the ledger counts as one that should have the entry",
        "connectors/spark/task/reader.py",
        "for index in quorum.write_set(entry_id))",
        "for index in range(len(ensemble)))",
        (f"{UNIT}/test_faults.py",),
    ),
    # -- planning
    Mutant(
        "a read begins at a place of another topic",
        "connectors/spark/plan/cluster.py",
        '        self._check_was(part, record.ledgerInfo, start, "starting")\n',
        "",
        _STREAM,
    ),
    Mutant(
        "the end of the last ledger counts as a place of another topic",
        "connectors/spark/plan/recorded.py",
        "        return position != (ledger_ids[-1] + 1, 0)",
        "        return True",
        (f"{UNIT}/plan/test_recorded.py",),
    ),
    Mutant(
        "the place of an empty ledger that is gone counts as one of another topic",
        "connectors/spark/plan/recorded.py",
        "    return entry_id > 0\n",
        "    return True\n",
        (f"{UNIT}/plan/test_recorded.py",),
    ),
    Mutant(
        "the last ledger of a topic is believed to be closed",
        "connectors/spark/plan/recorded.py",
        "        if entries > 0 and (number < last or only_offloaded(info)):\n",
        "        if entries > 0:\n",
        (f"{UNIT}/plan/test_recorded.py",),
    ),
    # -- streams
    Mutant(
        "the subscription lets go of the last entry that was read",
        "connectors/spark/stream/driver.py",
        "None if last is None else self._follower.last_before(part, last)",
        "last",
        _STREAM,
    ),
    Mutant(
        "partitions that join are kept when their first batch is done",
        "connectors/spark/stream/driver.py",
        "            self._loop.run(self._follower.look())\n            self._keep_new()\n",
        "            self._loop.run(self._follower.look())\n",
        _STREAM,
    ),
    Mutant(
        "a subscription that others have moved is believed to have kept everything",
        "connectors/spark/stream/follower.py",
        "            if self._ledger_ids and self._ledger_ids[0] <= kept[0]:\n                return None\n",
        "            return None\n",
        _STREAM,
    ),
    Mutant(
        "topics of a checkpoint that are gone are not looked at",
        "connectors/spark/stream/driver.py",
        "for part in first.positions.keys() - ends.keys():",
        "for part in first.positions.keys() - first.positions.keys():",
        _STREAM,
    ),
    # -- limits of a stream's batches
    Mutant(
        "the entry that is above the limit is in the batch as well",
        "connectors/spark/stream/measures.py",
        "        return max(self._low + 1, 1)\n",
        "        return self._low + 2\n",
        _MEASURES,
    ),
    Mutant(
        "messages that a broker began to number anew are taken to be few",
        "connectors/spark/stream/measures.py",
        "    if last.last_index + offset < backlog.entries:\n        return None\n",
        "",
        _MEASURES,
    ),
    Mutant(
        "what a ledger has before the batch counts for its limit",
        "connectors/spark/stream/measures.py",
        "        offsets.append(total - (skipped if place == 0 else 0))\n",
        "        offsets.append(total)\n",
        _MEASURES,
    ),
    Mutant(
        "the entries of a whole backlog are looked at",
        "connectors/spark/stream/measures.py",
        "        self._is_over = self._is_over or self._left_entries < 1 or self._left_bytes < 0\n",
        "",
        _MEASURES,
    ),
    Mutant(
        "the newest offset is what the first look of a query that comes back shows",
        "connectors/spark/stream/driver.py",
        "{part: max(ends.get(part, EARLIEST), self._reached.get(part, EARLIEST)) for part in parts}",
        "{part: ends.get(part, EARLIEST) for part in parts}",
        (*_LIMITS, "-k", "newest_offset"),
    ),
    # -- the backlog of a subscription
    Mutant(
        "entries of a gap that is not worth a task are rows",
        "connectors/spark/task/reader.py",
        "        if acked is not None and acked.has(ledger_id, entry_id):\n            return False\n",
        "",
        BACKLOG,
    ),
    Mutant(
        "the messages of a batch that are left are those that were consumed",
        "connectors/spark/plan/unconsumed.py",
        "                consumed[at : at + count] = is_open == 0\n",
        "                consumed[at : at + count] = is_open == 1\n",
        ("tests/property/test_spark_backlog.py",),
    ),
    Mutant(
        "a repeated task's rows are not compared",
        "connectors/spark/write/sequences.py",
        "            if stored.checksum != self._checksum():\n                self.state = State.REPEATING\n",
        "",
        _SEQUENCES,
    ),
    Mutant(
        "a repeated task with fewer rows is taken for the same",
        "connectors/spark/write/sequences.py",
        "            self.state = State.REPEATING\n        return self.cut()\n",
        "            pass\n        return self.cut()\n",
        _SEQUENCES,
    ),
    Mutant(
        "the smallest gives up its memory",
        "connectors/spark/write/room.py",
        "        return max(self._sizes, key=self._sizes.__getitem__)\n",
        "        return min(self._sizes, key=self._sizes.__getitem__)\n",
        _SPOOL,
    ),
    Mutant(
        "rows in the file come behind those in memory",
        "connectors/spark/write/spool.py",
        "        for offset, count in self._pieces:\n            yield from self._file.read(offset, count)\n"
        "        yield from self._rows\n",
        "        yield from self._rows\n"
        "        for offset, count in self._pieces:\n            yield from self._file.read(offset, count)\n",
        _SPOOL,
    ),
    Mutant(
        "a namespace in a pattern is passed over",
        "connectors/spark/plan/catalog.py",
        "        return None if named is None else pattern\n",
        "        return None\n",
        (f"{UNIT}/plan/test_catalog.py",),
    ),
    Mutant(
        "a group has the number of its first row",
        "connectors/spark/write/sequences.py",
        "        group, self._group, self._size_bytes = Group(self._id(), self._group), [], 0\n",
        "        self._rows, rows = self._rows - len(self._group) + 1, self._rows\n"
        "        group, self._group, self._size_bytes = Group(self._id(), self._group), [], 0\n"
        "        self._rows = rows\n",
        _SEQUENCES,
    ),
    Mutant(
        "what was stored before is sent again",
        "connectors/spark/write/sequences.py",
        "        if stored is not None and row < stored.row:\n            return None\n",
        "",
        _SEQUENCES,
    ),
    Mutant(
        "a null value of a pair takes the key with it",
        "connectors/spark/values/decoding.py",
        "None if values.has_keys_apart else source.null_value",
        "source.null_value",
        _PAIRS,
    ),
    Mutant(
        "bytes behind a pair are not noticed",
        "connectors/spark/values/key_values.py",
        "    if at < len(data):\n",
        "    if False:\n",
        _PAIRS,
    ),
    Mutant(
        "a bad value keeps the columns that were decoded before it was seen to be bad",
        "connectors/spark/values/decoding.py",
        "                    values[row] = None\n",
        "                    pass\n",
        _PERMISSIVE,
    ),
    Mutant(
        "bad values are not counted",
        "connectors/spark/task/rows.py",
        "        self.corrupt_count += len(decoded.corrupt)\n",
        "        self.corrupt_count += 0\n",
        _PERMISSIVE,
    ),
    Mutant(
        "a field with presence that is not set is zero",
        "connectors/spark/values/protobuf_values.py",
        "None if has_presence and not read.HasField(name) else convert_value(getattr(read, name))",
        "convert_value(getattr(read, name))",
        _PROTOBUF,
    ),
    Mutant(
        "a message without a required field is a row",
        "connectors/spark/values/protobuf_values.py",
        "                if not parsed.IsInitialized():\n",
        "                if False:\n",
        _PROTOBUF,
    ),
    # -- values of one size
    Mutant(
        "values behind heads of several lengths are taken to stand at equal distances",
        "connectors/spark/batches/strided.py",
        "        firsts = [0, *changes.tolist(), len(starts)]\n",
        "        firsts = [0, len(starts)]\n",
        _ROWS,
    ),
    Mutant(
        "values of several sizes are copied as if they had one",
        "connectors/spark/batches/strided.py",
        "        if not value_bytes or (ends - starts != value_bytes).any():\n",
        "        if not value_bytes:\n",
        _ROWS,
    ),
    Mutant(
        "a flag at an odd place of the metadata is not seen",
        "connectors/spark/batches/strided.py",
        "        for first in (0, 1):\n",
        "        for first in (0,):\n",
        _ROWS,
    ),
    Mutant(
        "of two types of one name the first counts",
        "connectors/spark/values/value_columns.py",
        "    if known.dataType != field.dataType:\n",
        "    if False:\n",
        _UNITED,
    ),
    Mutant(
        "what compaction emptied is counted",
        "connectors/spark/task/reader.py",
        "not has_compacted and is_by_heads(",
        "is_by_heads(",
        (f"{_UNIT}/test_compacted.py", "-k", "of_each_key"),
    ),
    Mutant(
        "a bad batch is as many rows as it says, but only in a count",
        "connectors/spark/task/rows.py",
        "    return mode is Mode.FAILFAST and ",
        "    return ",
        (f"{_UNIT}/task/test_rows.py", "-k", "by_heads"),
    ),
    Mutant(
        "an encrypted batch is split as if it were not",
        "connectors/spark/task/rows.py",
        "        if is_batch(metadata) and not metadata.encryption_keys:\n",
        "        if is_batch(metadata):\n",
        _ENCRYPTION,
    ),
    Mutant(
        "an encrypted entry is read as if it were not",
        "connectors/spark/task/encryption.py",
        "    if not is_passed:\n",
        "    if False:\n",
        _ENCRYPTION,
    ),
    Mutant(
        "a union of two records has the members in the wrong places where null stands between them",
        "connectors/spark/values/avro_unions.py",
        "    for number, branch in enumerate(union):\n",
        "    for number, branch in enumerate(reversed(union)):\n",
        _VALUES,
    ),
    Mutant(
        "a search believes a time that its ledger cannot have",
        "connectors/spark/plan/times.py",
        "time_ms if time_ms is not None and is_possible(number, time_ms) else None",
        "time_ms",
        ("tests/unit/connectors/spark/plan/test_times.py", "-k", "wrong_clock"),
    ),
    # -- what who may only produce can write
    Mutant(
        "a length without an end is read to its end",
        "connectors/spark/batches/borders.py",
        "    while shift <= _LENGTH_BITS_MAX:",
        "    while True:",
        (*_HOSTILE, "-k", "without_an_end"),
    ),
    Mutant(
        "items without bytes take nothing",
        "connectors/spark/values/limits.py",
        "self._bytes_free = min((CELLS_MAX * least // cells for",
        "self._bytes_free = min((CELLS_MAX * max(least, 1) // cells for",
        (*_HOSTILE, "-k", "without_bytes and 1310721"),
    ),
    Mutant(
        "fields that the schema adds take nothing",
        "connectors/spark/values/limits.py",
        "            cells = max(cells, self._added)\n",
        "",
        (*_HOSTILE, "-k", "adds_count"),
    ),
    Mutant(
        "a decimal has as many bytes as it likes",
        "connectors/spark/values/records.py",
        "    if len(data) > DECIMAL_BYTES_MAX:\n",
        "    if False:\n",
        (*_HOSTILE, "-k", "decimal_has"),
    ),
    Mutant(
        "messages in a message are counted after they were made",
        "connectors/spark/values/protobuf_values.py",
        "                limits.check(data)\n                parsed",
        "                parsed",
        (*_HOSTILE, "-k", "two_bytes"),
    ),
    Mutant(
        "a type that is named twice has its fields once",
        "connectors/spark/values/limits.py",
        "            sum(1 + field.fields for field in fields),\n",
        "            1 + max((field.fields for field in fields), default=0),\n",
        (*_HOSTILE, "-k", "columns_are_bounded"),
    ),
    Mutant(
        "the name of a producer weighs nothing",
        "connectors/spark/task/rows.py",
        "        if self._long:\n            row_bytes",
        "        if False:\n            row_bytes",
        (*_HOSTILE, "-k", "weighed or repeat"),
    ),
    Mutant(
        "what weighs too much is one record batch all the same",
        "connectors/spark/task/rows.py",
        "        if self.weight <= bytes_max:\n            yield",
        "        if True:\n            yield",
        (*_HOSTILE, "-k", "bounded_weight"),
    ),
    Mutant(
        "a worker without memory calls it a bad value",
        "connectors/spark/values/decoding.py",
        "        except MemoryError:\n            raise",
        "        except ZeroDivisionError:\n            raise",
        (*_HOSTILE, "-k", "without_memory"),
    ),
    Mutant(
        "entries ahead are all unpacked",
        "connectors/spark/task/reader.py",
        "                    left -= len(opened.payload)\n",
        "                    left -= 0\n",
        _PERMISSIVE,
    ),
    Mutant(
        "a bad entry takes those beside it along",
        "connectors/spark/task/rows.py",
        "            elif len(entries) > 1:\n                middle",
        "            elif len(entries) > 9:\n                middle",
        _PERMISSIVE,
    ),
    Mutant(
        "bad entries that are dropped are not told",
        "connectors/spark/task/rows.py",
        "        self.first_bad = self.first_bad or bad\n",
        "",
        _PERMISSIVE,
    ),
    Mutant(
        "a bad value stays a row where it is to be dropped",
        "connectors/spark/task/rows.py",
        "        if decoded.corrupt and self._mode is Mode.DROPMALFORMED:\n",
        "        if False:\n",
        _PERMISSIVE,
    ),
    Mutant(
        "a bad entry before the read ends it, whatever the mode",
        "connectors/spark/task/reader.py",
        "                if self._bad_before is not None and self._options.mode is Mode.FAILFAST:\n",
        "                if self._bad_before is not None:\n",
        _PERMISSIVE,
    ),
    Mutant(
        "each message without its first chunks is looked for from the beginning",
        "connectors/spark/task/reader.py",
        "        if self._steps is None:\n",
        "        if True:\n",
        _PERMISSIVE,
    ),
)
