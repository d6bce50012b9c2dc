"""Runs lines of `admin_commands` with Apache's tool, and makes what it says comparable."""

import json
import re
import shlex
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.support.mixed_cluster import class_path

PROGRAM: Final = "org.apache.pulsar.admin.cli.AdminCommands"
OPTIONS: Final = (
    "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.apache.logging.log4j.level=OFF",
)  # fmt: skip
COMMAND_TIMEOUT_S: Final = 30
"""A command that takes longer has hung; the slowest takes a second or two."""
HUNG: Final = -1

_SCHEMA: Final = {"type": "record", "name": "A", "fields": [{"name": "a", "type": "string"}]}
_WIDER: Final = {**_SCHEMA, "fields": [*_SCHEMA["fields"], {"name": "b", "type": ["null", "int"], "default": None}]}
_OTHER: Final = {**_SCHEMA, "fields": [{"name": "a", "type": "int"}]}


class Said(NamedTuple):
    """What one command left: its exit code (HUNG if it did not end), and what it printed."""

    exit: int
    text: str


def make_files(folder: Path) -> None:
    """The files that lines name as `{files}/…`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, schema in (("schema", _SCHEMA), ("wider", _WIDER), ("other", _OTHER)):
        told = {"type": "AVRO", "schema": json.dumps(schema), "properties": {}}
        (folder / f"{name}.json").write_text(json.dumps(told))
    with zipfile.ZipFile(folder / "code.jar", "w") as archive:
        archive.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")


def catalogue(classes: Path) -> dict[str, dict[str, list[str]]]:
    """Each group of the tool with its commands and what these take."""
    found: dict[str, dict[str, list[str]]] = json.loads(_java(classes, "catalogue", timeout_s=60))
    return found


def run(classes: Path, url: str, lines: Sequence[str], filled: Mapping[str, str], folder: Path) -> list[Said]:
    """Runs the lines, one after the other, with one process of the tool."""
    words = [shlex.split(line.format_map(filled)) for line in lines]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lines.json").write_text(json.dumps(words))
    answers = folder / "answers"
    _java(classes, url, str(folder / "lines.json"), str(COMMAND_TIMEOUT_S), str(answers), timeout_s=900)
    said = [Said(one["exit"], one["said"]) for one in map(json.loads, answers.read_text().splitlines())]
    assert len(said) == len(lines), "the tool's process ended before the last line"
    return said


def _java(classes: Path, *arguments: str, timeout_s: float) -> str:
    done = subprocess.run(
        ["java", *OPTIONS, "-cp", class_path(classes), PROGRAM, *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=timeout_s,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


_PATTERNS: Final = (
    (re.compile(r"127\.0\.0\.1:\d+|localhost:\d+"), "<address>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(Z|[+-]\d\d:\d\d)?"), "<time>"),
    (re.compile(r"-?\b\d+:-?\d+(:-?\d+)?\b"), "<message id>"),
    (re.compile(r"\b\d{4,}\.\d+|\b\d{10,}\b"), "<number>"),
    (re.compile(r"reqId=\S+|requestId: \S+"), "<request>"),
)  # fmt: skip

_LISTED: Final = re.compile(r"\[([^\[\]]*)\]")
"""What Java prints of a set; its order says nothing."""

MEASURED: Final = re.compile(
    r"(?i)(rate|throughput|timestamp|time|size|age|bytes|ledgers?|ledgerId|position|address|connectedSince"
    r"|producerName|clientVersion|version|uuid|metadata|offset|lastConfirmedEntry|ownerBroker)"
)  # fmt: skip
"""Members of JSON whose value is measured, or is an id or a place; only their kind is compared."""


def comparable(said: Said) -> Any:
    """What has to be the same for two brokers: JSON with what was measured left out, else the lines of the text."""
    start = min((place for place in map(said.text.find, "[{") if place >= 0), default=-1)
    if said.exit == 0 and start == 0:
        try:
            return _plain(json.loads(said.text))
        except ValueError:
            pass
    text = _LISTED.sub(lambda found: f"[{', '.join(sorted(found[1].split(', ')))}]", said.text)
    for pattern, name in _PATTERNS:
        text = pattern.sub(name, text)
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def _plain(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {_plain(key): _plain(one, key) for key, one in value.items()}
    if isinstance(value, list):
        parts = [_plain(one, name) for one in value]
        return sorted(parts, key=str) if all(isinstance(one, str) for one in parts) else parts
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return "<number>" if MEASURED.search(name) else value
    for pattern, put in _PATTERNS:
        value = pattern.sub(put, value)
    return value
