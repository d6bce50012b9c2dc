"""What Java's client encrypts, the Spark source decrypts."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.support.mixed_cluster import compile_java, run_java
from tests.support.processes import Standalone
from tests.unit.connectors.spark.task.test_encryption import private_key, written
from tests.unit.connectors.spark.world import reader_of, rows_of

HERE: Final = Path(__file__).parent

Cell = Callable[[str, str], None]


@pytest.mark.parametrize("kind", ["RSA", "elliptic curve"])
def test_what_javas_client_encrypts_is_decrypted(cell: Cell, tmp_path: Path, kind: str) -> None:
    cell("messages that Java's client encrypted, in the Spark source", "our standalone")
    classes = compile_java([HERE / "java" / "Encrypted.java"], tmp_path / "classes")
    private = private_key() if kind == "RSA" else ec.generate_private_key(ec.SECP256R1())
    folder = written(private, tmp_path / "keys" / "job.pem").parent
    public = tmp_path / "public.pem"
    public.write_bytes(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with Standalone(tmp_path / "data") as standalone:
        run_java(tmp_path, classes, "Encrypted", standalone.service_url, "secrets", str(public))
        options = {
            "metadata.url": f"rocksdb:{standalone.data / 'metadata'}", "topic": "secrets", "columns": "value,__key",
            "encryption.keys": str(folder),
        }  # fmt: skip
        rows = rows_of(reader_of(options))
    values = [row["value"] for row in rows]
    assert values[:21] == [b"alone", *(b"many %d" % number for number in range(20))]
    assert rows[0]["__key"] == b"k"
    (large,) = values[21:]
    assert (len(large), large[0]) == (6_000_000, 7)
