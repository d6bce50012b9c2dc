"""Records what an Apache broker answers about policies: `python -m tests.golden.record_policies URL HOST:PORT`.

The broker is a fresh standalone with its shipped settings, without authentication; its cluster is `standalone`. The
policies of a topic are changed by events that are applied a moment later, so each read follows a pause.
"""

import asyncio
import base64
import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

from broker.wire.frames import command, parse_frame
from broker.wire.pulsar_pb2 import BaseCommand, CommandSubscribe
from magnetar_core.bookkeeper.wire.framing import FrameSplitter
from tests.support.policy_calls import (
    CHANGES,
    CHANGES_SCHEMA,
    Step,
    inherited_steps,
    last_steps,
    made,
    namespace_steps,
    setting_steps,
    topic_steps,
)

FOLDER: Final = Path(__file__).parents[1] / "vectors" / "policies"
CLUSTER: Final = "standalone"
PAUSE_S: Final = 0.25


def ask(url: str, step: Step) -> tuple[int, str]:
    """(status, body)."""
    request = urllib.request.Request(url + step.path, method=step.method)
    if step.body is not None:
        request.data = json.dumps(step.body).encode()
        request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def record(url: str, steps: list[Step]) -> list[dict[str, Any]]:
    rows = []
    for step in steps:
        status, body = ask(url, step)
        rows.append({"method": step.method, "path": step.path, "body": step.body, "status": status, "answer": body})
        print(step.method, step.path, json.dumps(step.body), status, body[:100], flush=True)
        if step.method != "GET":
            time.sleep(PAUSE_S)
    return rows


def record_events(url: str, address: str) -> None:
    """What the broker has stored of the policies of topics: each entry as it is, and the schema."""
    rows = [{"entry": base64.b64encode(entry).decode()} for entry in asyncio.run(events(address))]
    write("events", rows)
    status, body = ask(url, Step("GET", CHANGES_SCHEMA))
    assert status == 200, body
    (FOLDER / "events_schema.json").write_text(body + "\n", encoding="utf-8")


async def events(address: str) -> list[bytes]:
    """The entries of the system topic, from the first one."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    splitter = FrameSplitter(2**30)
    found: list[bytes] = []
    writer.write(command(BaseCommand.CONNECT, client_version="recorder", protocol_version=21))
    writer.write(command(BaseCommand.SUBSCRIBE, topic=CHANGES, subscription="recorder", consumer_id=1, request_id=1,
                         subType=CommandSubscribe.Exclusive, durable=False,
                         initialPosition=CommandSubscribe.Earliest))  # fmt: skip
    writer.write(command(BaseCommand.FLOW, consumer_id=1, messagePermits=10_000))
    while True:
        try:
            async with asyncio.timeout(3):
                data = await reader.read(1 << 16)
        except TimeoutError:
            writer.close()
            return found
        assert data, "the broker closed the connection"
        found += [bytes(entry) for _, entry in map(parse_frame, splitter.feed(data)) if entry is not None]


def write(name: str, rows: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (FOLDER / f"{name}.jsonl").write_text(text, encoding="utf-8")


def main(url: str, address: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    record(url, made(CLUSTER))
    for name, steps in (
        ("namespace", namespace_steps(CLUSTER)),
        # Asked for the backlog quotas in force of a topic, Apache's broker writes its defaults into its copy of the
        # namespace's policies: all other calls come before.
        ("inherited", inherited_steps()),
        ("topic", topic_steps(CLUSTER)),
        ("settings", setting_steps()),
    ):
        write(name, record(url, steps))
    record(url, last_steps())
    record_events(url, address)


if __name__ == "__main__":
    main(*sys.argv[1:])
