"""Reading the golden vectors in tests/vectors."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = VECTORS = Path(__file__).resolve().parent.parent / "vectors"


def load(path: str) -> Any:
    """The JSON of one vector file."""
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def names(pattern: str) -> list[str]:
    """Paths below tests/vectors that match, sorted. Never empty: a missing vector must not pass a test."""
    found = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))
    assert found, f"no vectors match {pattern}"
    return found


def b64(text: str) -> bytes:
    return base64.b64decode(text)


def as_json(message: Any) -> dict[str, Any]:
    """A protobuf message in the form that the vectors use: original names, 64-bit integers as text."""
    from google.protobuf.json_format import MessageToDict

    return dict(MessageToDict(message, preserving_proto_field_name=True))


def stored_entries(path: str) -> Iterator[dict[str, Any]]:
    """Every entry of the data ledgers of an entries/ file."""
    for ledger in load(path).get("dataLedgers", []):
        yield from ledger["entries"]


def decoded(name: str) -> list[dict[str, Any]]:
    """What each frame of the conversation wire/*name* means, in the order of arrival."""
    text = (ROOT / "wire" / f"{name}.decoded.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def streams(name: str) -> dict[tuple[int, str], bytes]:
    """The bytes of the conversation wire/*name* by (connection, direction `c2s` or `s2c`)."""
    found: dict[tuple[int, str], bytes] = {}
    for line in (ROOT / "wire" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "data" in row:
            key = (row["conn"], row["dir"])
            found[key] = found.get(key, b"") + b64(row["data"])
    return found
