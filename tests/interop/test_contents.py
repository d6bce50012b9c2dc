"""Topics of each kind that Java's client wrote to a broker of Apache's: ours, and Spark, give what that broker gave."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.interop.test_compaction import compact
from tests.support.mixed_cluster import LINE, MixedCluster, Server, cluster_with, compile_java
from tests.unit.connectors.spark.task.test_encryption import private_key, written
from tests.unit.connectors.spark.world import reader_of, rows_of

HERE: Final = Path(__file__).parent

KINDS: Final = (
    "bytes", "string", "int8", "int16", "int32", "int64", "float", "double", "bool", "date", "time", "timestamp",
    "instant", "local-date", "local-time", "local-date-time", "avro", "json", "protobuf", "inline", "apart",
    "compressed", "chunks", "encrypted", "compacted",
)  # fmt: skip

ALIKE: Final = ("string", "int8", "int16", "int32", "int64", "avro", "json")
"""Those whose values are records or plain texts and numbers, which Spark and Java write alike."""


class Shown(NamedTuple):
    """A message as the Java client shows it; all as text."""

    kind: str
    message_id: str
    key: str
    ordering_key: str
    event_time: str
    publish_time: str
    sequence_id: str
    producer: str
    properties: str
    schema_version: str
    sha256: str
    size: str
    value: str


class Rig:
    def __init__(self, cluster: MixedCluster, folder: Path) -> None:
        private = private_key()
        self.keys = written(private, folder / "keys" / "job.pem").parent
        self.public = folder / "public.pem"
        self.public.write_bytes(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        self.cluster = cluster
        self._classes = compile_java([HERE / "java" / "Contents.java"], folder / "classes", line=LINE)

    def java(self, what: str, broker: Server, *arguments: str) -> list[Shown]:
        text = self.cluster.java(self._classes, "Contents", what, broker.service_url, *arguments, line=LINE)
        assert text.rstrip().endswith("END"), text[-3000:]
        lines = [line.split("|", 13)[1:] for line in text.splitlines() if line.startswith("MESSAGE|")]
        return [Shown(*fields) for fields in lines]

    def read(self, broker: Server) -> list[Shown]:
        return self.java("read", broker, str(self.keys / "job.pem"))

    def rows(self, kind: str, **options: str) -> list[dict[str, Any]]:
        return rows_of(
            reader_of({"metadata.url": self.cluster.metadata_url, "topic": f"contents-{kind}",
                       "encryption.keys": str(self.keys), **options})
        )  # fmt: skip


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with cluster_with(tmp_path / "cluster", "ours", "apache", "ours") as cluster:
        yield Rig(cluster, tmp_path)


def text_of(value: Any) -> str:
    """A value of Spark's as `Contents.text` writes it."""
    if isinstance(value, dict):
        pairs = sorted((name, field) for name, field in value.items() if field is not None)
        return "{" + ", ".join(f"{name}={text_of(field)}" for name, field in pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(text_of, value)) + "]"
    return "null" if value is None else str(value)


def plain(text: str) -> str:
    return text.replace('"', "").replace(" ", "")


def check_rows(rig: Rig, kind: str, wanted: list[Shown]) -> None:
    rows = rig.rows(kind, columns="value,__key,__messageProperties")
    assert [hashlib.sha256(row["value"] or b"").hexdigest() for row in rows] == [shown.sha256 for shown in wanted], kind
    if kind != "apart":  # its keys are bytes, which Java's client shows in base64
        keys = ["null" if row["__key"] is None else row["__key"].decode() for row in rows]
        assert keys == [shown.key for shown in wanted], kind
    properties = [text_of(dict(row["__messageProperties"] or {})) for row in rows]
    assert properties == [shown.properties for shown in wanted], kind
    if kind in ALIKE:
        decoded = [decoded_of(row) for row in rig.rows(kind, valueFormat="auto")]
        assert [plain(text_of(value)) for value in decoded] == [plain(shown.value) for shown in wanted], kind


def decoded_of(row: dict[str, Any]) -> Any:
    """The value of a row: one column, or the fields of a record; a record without any is a null value."""
    fields = {name: field for name, field in row.items() if not name.startswith("__")}
    if "value" in fields:
        return fields["value"]
    return fields if any(field is not None for field in fields.values()) else None


def test_topics_of_each_kind(rig: Rig, cell: Callable[[str, str], None]) -> None:
    cell("topics of each kind, handed over: consumers and Spark", "both brands of bookies")
    apache = rig.cluster.add("broker", "apache")
    rig.java("write", apache, str(rig.public))
    compact(apache, "persistent://public/default/contents-compacted")
    rig.java("more", apache)
    by_apache = rig.read(apache)
    assert [*dict.fromkeys(shown.kind for shown in by_apache)] == [*KINDS, "kept"]
    apache.kill()

    ours = rig.cluster.add("broker", "ours")
    by_ours = rig.read(ours)
    assert by_ours == by_apache

    for kind in KINDS:
        check_rows(rig, kind, [shown for shown in by_ours if shown.kind == kind])
    ours.stop()

    apache.start()
    assert rig.read(apache) == by_apache
