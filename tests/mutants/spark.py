"""Seeded bugs of the Spark source: how values become columns."""

from typing import Final

from tests.mutants.catalogue import Mutant

_UNIT: Final = "tests/unit/connectors/spark"
_PAIRS: Final = (f"{_UNIT}/test_key_values.py",)
_PERMISSIVE: Final = (f"{_UNIT}/test_permissive.py",)
_PROTOBUF: Final = (f"{_UNIT}/test_protobuf_values.py",)
_UNITED: Final = (f"{_UNIT}/test_union_schemas.py",)
_ENCRYPTION: Final = (f"{_UNIT}/test_encryption.py",)
_VALUES: Final = (f"{_UNIT}/test_values.py",)

MUTANTS: Final = (
    Mutant(
        "a null value of a pair takes the key with it",
        "connectors/spark/decoding.py",
        "None if values.has_keys_apart else source.null_value",
        "source.null_value",
        _PAIRS,
    ),
    Mutant(
        "bytes behind a pair are not noticed",
        "connectors/spark/key_values.py",
        "    if at < len(data):\n",
        "    if False:\n",
        _PAIRS,
    ),
    Mutant(
        "a bad value keeps the columns that were decoded before it was seen to be bad",
        "connectors/spark/decoding.py",
        "                for row in self._corrupt:\n                    values[row] = None\n",
        "                pass\n",
        _PERMISSIVE,
    ),
    Mutant(
        "bad values are not counted",
        "connectors/spark/rows.py",
        "            self.corrupt_count += int(decoded.corrupt.sum())\n",
        "            self.corrupt_count += 0\n",
        _PERMISSIVE,
    ),
    Mutant(
        "a field with presence that is not set is zero",
        "connectors/spark/protobuf_values.py",
        "None if has_presence and not read.HasField(name) else one(getattr(read, name))",
        "one(getattr(read, name))",
        _PROTOBUF,
    ),
    Mutant(
        "a message without a required field is a row",
        "connectors/spark/protobuf_values.py",
        "                if not found.IsInitialized():\n",
        "                if False:\n",
        _PROTOBUF,
    ),
    Mutant(
        "of two types of one name the first counts",
        "connectors/spark/value_columns.py",
        "    if known.dataType != field.dataType:\n",
        "    if False:\n",
        _UNITED,
    ),
    Mutant(
        "an encrypted batch is split as if it were not",
        "connectors/spark/rows.py",
        "        if is_batch(metadata) and not metadata.encryption_keys:\n",
        "        if is_batch(metadata):\n",
        _ENCRYPTION,
    ),
    Mutant(
        "an encrypted entry is read as if it were not",
        "connectors/spark/encryption.py",
        "    if not is_passed:\n",
        "    if False:\n",
        _ENCRYPTION,
    ),
    Mutant(
        "a union of two records has the members in the wrong places where null stands between them",
        "connectors/spark/avro_unions.py",
        "    for number, branch in enumerate(union):\n",
        "    for number, branch in enumerate(reversed(union)):\n",
        _VALUES,
    ),
)
