"""Mistakes that the Spark source could make (see `catalogue`)."""

from tests.mutants.catalogue import Mutant

UNIT = "tests/unit/connectors/spark"
BACKLOG = (f"{UNIT}/test_backlog.py",)
FILTERS = ("tests/property/test_spark_filters.py",)

_SEQUENCES = ("tests/unit/connectors/spark/test_sequences.py",)

MUTANTS = (
    # -- filters
    Mutant(
        "a filter from an entry on leaves out that entry",
        "connectors/spark/filters.py",
        "        case GreaterThanOrEqual(value=int() as value):\n            return _Span(value, None)\n",
        "        case GreaterThanOrEqual(value=int() as value):\n            return _Span(value + 1, None)\n",
        FILTERS,
    ),
    Mutant(
        "a batch is left out by the key of its first message",
        "connectors/spark/filters.py",
        """        if "__key" in tests and not is_batch(metadata):  # rule 3\n""",
        """        if "__key" in tests:  # rule 3\n""",
        FILTERS,
    ),
    Mutant(
        "rows before a gap are not known to the tasks behind it",
        "connectors/spark/planning.py",
        "    if begin > runs[first].first:\n        before.append(",
        "    if begin > runs[first].last:\n        before.append(",
        ("tests/property/test_spark_planning.py",),
    ),
    # -- faults
    Mutant(
        "connections to bookies that failed are kept for the next attempt",
        "connectors/spark/reader.py",
        "    except EntryUnreadable:\n        _drop_connection(options)\n",
        "    except EntryUnreadable:\n",
        (f"{UNIT}/test_faults.py",),
    ),
    Mutant(
        "every bookie of the ledger counts as one that should have the entry",
        "connectors/spark/reader.py",
        "for index in quorum.write_set(entry_id))",
        "for index in range(len(ensemble)))",
        (f"{UNIT}/test_faults.py",),
    ),
    # -- planning
    Mutant(
        "the last ledger of a topic is believed to be closed",
        "connectors/spark/recorded.py",
        "        if entries > 0 and number < last:\n",
        "        if entries > 0:\n",
        (f"{UNIT}/test_recorded.py",),
    ),
    # -- the backlog of a subscription
    Mutant(
        "entries of a gap that is not worth a task are rows",
        "connectors/spark/reader.py",
        "        if acked is not None and acked.has(ledger_id, entry_id):\n            return False\n",
        "",
        BACKLOG,
    ),
    Mutant(
        "the messages of a batch that are left are those that were consumed",
        "connectors/spark/backlog.py",
        "                found[at : at + count] = is_open == 0\n",
        "                found[at : at + count] = is_open == 1\n",
        ("tests/property/test_spark_backlog.py",),
    ),
    Mutant(
        "a repeated task's rows are not compared",
        "connectors/spark/sequences.py",
        "            if stored.checksum != self._checksum():\n                self.state = State.REPEATING\n",
        "",
        _SEQUENCES,
    ),
    Mutant(
        "a repeated task with fewer rows is taken for the same",
        "connectors/spark/sequences.py",
        "            self.state = State.REPEATING\n        return self._take() if self._group else None\n",
        "            pass\n        return self._take() if self._group else None\n",
        _SEQUENCES,
    ),
    Mutant(
        "a group has the number of its first row",
        "connectors/spark/sequences.py",
        "        group, self._group, self._size_bytes = Group(self._id(), self._group), [], 0\n",
        "        self._rows, rows = self._rows - len(self._group) + 1, self._rows\n"
        "        group, self._group, self._size_bytes = Group(self._id(), self._group), [], 0\n"
        "        self._rows = rows\n",
        _SEQUENCES,
    ),
    Mutant(
        "what was stored before is sent again",
        "connectors/spark/sequences.py",
        "        if stored is not None and row < stored.row:\n            return None\n",
        "",
        _SEQUENCES,
    ),
)
