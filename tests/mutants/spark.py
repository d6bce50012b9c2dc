"""Mistakes that the connector for Spark could make."""

from tests.mutants.catalogue import Mutant

_SEQUENCES = ("tests/unit/connectors/spark/test_sequences.py",)

MUTANTS = (
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
