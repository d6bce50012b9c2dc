"""Reads drawn entries as a task of Spark reads them, in a process of its own, where memory and time can be measured.

    python -m tests.abuse.spark_reader SEED COUNT FILE     a line of JSON for each input: what it is, what it took

An input is a schema and some entries, in the mode in which none of them may end a query. The system ends the process
if one input takes more than `CPU_MAX_S` of a processor; the file then names it.
"""

import contextlib
import json
import random
import resource
import sys
import time
import zlib
from pathlib import Path
from typing import Any, Final

from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from broker.wire.pulsar_pb2 import Schema as WireSchema
from connectors.spark.options.metadata_columns import METADATA_COLUMNS
from connectors.spark.options.read import UNPACKED_BYTES, Mode
from connectors.spark.task.entries import BadEntry, HeadlessChunk, open_entry
from connectors.spark.task.rows import RowBuilder
from connectors.spark.values.decoding import CORRUPT, REASON
from connectors.spark.values.kinds import fields_of, kind_of, values_of
from magnetar_core.runtime.types import ConfigurationError
from managed_ledger.messages_pb2 import ZLIB
from managed_ledger.schemas.compatibility import Schema, SchemaType
from managed_ledger.schemas.stored import StoredSchema
from tests.abuse import adversaries, inputs
from tests.unit.connectors.spark.entries import TOPIC, batch, message, single

CPU_MAX_S: Final = 20

_ZEROS: Final = zlib.compress(bytes(200_000_000))
_MOST: Final = zlib.compress(bytes(UNPACKED_BYTES))

# The oldest and the newest of a topic's schemas, by which type they are.
_TYPES: Final = {
    WireSchema.Avro: SchemaType.AVRO, WireSchema.Json: SchemaType.JSON, WireSchema.Protobuf: SchemaType.PROTOBUF,
    WireSchema.ProtobufNative: SchemaType.PROTOBUF_NATIVE, WireSchema.KeyValue: SchemaType.KEY_VALUE,
}  # fmt: skip
_TEXTS: Final = (
    b'{"s":"\\ud800"}', b'{"f0":' + b"9" * 2_000_000 + b"}", b'{"f0":1e999999999}', b"[" * 100_000, b'{"f0":' * 5_000,
    b'{"f0":[' + b"{}," * 300_000 + b"{}]}", b"\xff", b"NaN",
)  # fmt: skip


def value_of(rng: random.Random) -> bytes:
    return rng.choice(_TEXTS) if rng.random() < 0.2 else adversaries.value(rng)


def entry_of(rng: random.Random) -> bytes:
    kind = rng.randrange(8)
    if kind < 4:
        return single(value_of(rng), **({"producer_name": "n" * 100_000} if rng.random() < 0.1 else {}))
    if kind == 4:
        return batch(*(message(value_of(rng)) for _ in range(3)))
    if kind == 5 and rng.random() < 0.3:
        return single(_MOST, compression=ZLIB, uncompressed_size=UNPACKED_BYTES)
    if kind == 5:
        return single(_ZEROS, compression=ZLIB, uncompressed_size=rng.choice([200_000_000, 64 << 20, 1, 2**32 - 1]))
    if kind == 6:
        return single(b"\xff" * rng.choice([100, 400_000]), num_messages_in_batch=rng.choice([1, 1_000_000, 2**31 - 1]))
    return inputs.entry(rng)


def read(rng: random.Random, number: int) -> str:
    """Read one input; in how many rows it ended, or why its schema is none."""
    kind, first, second = adversaries.schemas(rng, number)
    definitions = [first, second] if rng.random() < 0.3 else [first]
    schemas = [StoredSchema(n, Schema(_TYPES[kind], made), 0, "", False) for n, made in enumerate(definitions)]  # type: ignore[index]
    try:
        name = kind_of(schemas[-1])
        fields = fields_of(name, schemas[-1], TOPIC)
        values = None if name == "binary" else values_of(name, schemas, schemas[-1], TOPIC)
    except ConfigurationError as error:
        return f"no columns: {error}"[:200]
    fields += [t.StructField(CORRUPT, t.BinaryType()), t.StructField(REASON, t.StringType())]
    fields += [t.StructField(column, METADATA_COLUMNS[column][0], True) for column in ("__producerName", "__messageId")]
    columns = to_arrow_schema(t.StructType(fields), timezone="UTC")
    builder = RowBuilder(columns, TOPIC, -1, values, mode=Mode.PERMISSIVE)
    rows = 0
    for entry_id in range(rng.choice([1, 5])):
        try:
            opened = open_entry(TOPIC, 3, entry_id, entry_of(rng), keeps_stored=True)
        except BadEntry as error:
            builder.add_bad(error)
        else:
            if opened is not None:
                with contextlib.suppress(HeadlessChunk):  # a task then reads what stands before
                    builder.add(opened)
        rows += sum(made.num_rows for made in builder.take())
    return f"{rows} rows"


def main(seed: str, count: int, path: Path) -> None:
    with path.open("w") as file:

        def tell(**told: Any) -> None:
            file.write(json.dumps(told) + "\n")
            file.flush()

        for number in range(count):
            tell(input=number)
            begun_s = time.process_time()
            resource.setrlimit(resource.RLIMIT_CPU, (int(begun_s) + CPU_MAX_S, resource.RLIM_INFINITY))
            found = read(random.Random(f"{seed} Spark {number}"), number)
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            tell(input=number, found=found, cpu_s=round(time.process_time() - begun_s, 2), memory_mb_max=used)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
