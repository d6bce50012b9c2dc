"""One bookie process with its own metadata store, and its load."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from bench.process_facts import cpu_seconds, resident_mb
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, Segment
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, initialise_cluster
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.bookkeeper.wire.entry import DigestType
from magnetar_core.runtime.clock import LoopClock

NAME = "bench"
START_S = 300.0


class BookieProcess:
    """`magnetar bookie` in *folder*, with the shipped settings but for ports and what *settings* says."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.settings = settings
        self.host, self.port, self.http_url = "127.0.0.1", 0, ""
        self.resident_mb_max = 0.0
        self._process: subprocess.Popen[str] | None = None

    def start(self, **settings: object) -> float:
        """Seconds from the command to the line that says that it can be used."""
        self.folder.mkdir(parents=True, exist_ok=True)
        values: dict[str, object] = {
            "bookieId": NAME,
            "bookiePort": 0,
            "bookieListenAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "journalDirectory": self.folder / "journal",
            "ledgerDirectories": self.folder / "ledgers",
            "metadataServiceUri": f"rocksdb:{self.folder / 'metadata'}",
            "httpServerEnabled": "true",
            "httpServerPort": 0,
        }
        values |= {**self.settings, **settings}
        config = self.folder / "bookie.conf"
        config.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        began = time.perf_counter()
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "magnetar", "bookie", "--config", str(config)],
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        seconds = time.perf_counter() - began
        if " is ready at " not in line:
            raise SystemExit(f"the bookie did not start: {(self.folder / 'log').read_text()[-2000:]}")
        address = line.partition(" is ready at ")[2].split()[0].rstrip(",")
        self.port = int(address.rpartition(":")[2])
        self.http_url = line.partition("HTTP ")[2].split(",")[0]
        self.resident_mb_max = 0.0
        threading.Thread(target=self._watch, args=(self._process,), daemon=True).start()
        return seconds

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def resident_mb(self) -> float:
        return resident_mb(self.pid)

    @property
    def cpu_s(self) -> float:
        return cpu_seconds(self.pid)

    def stop(self) -> None:
        """In order; returns when everything is flushed."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def call(self, method: str, path: str, body: dict[str, object] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.http_url}{path}", data=data, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read().decode()
        with contextlib.suppress(ValueError):
            return json.loads(text)
        return text

    def metric(self, name: str) -> float:
        """One number of /metrics, named with its labels."""
        for line in str(self.call("GET", "/metrics")).splitlines():
            if line.startswith(name + " "):
                return float(line.rpartition(" ")[2])
        raise SystemExit(f"the bookie has no metric {name}")

    def forget_pages(self) -> None:
        """Drop the files of its ledger directory from the page cache."""
        os.sync()
        for path in (self.folder / "ledgers").rglob("*"):
            if path.is_file():
                with open(path, "rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def _end(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(120)

    def _watch(self, process: "subprocess.Popen[str]") -> None:
        while process.poll() is None:
            with contextlib.suppress(OSError, ValueError, IndexError):
                self.resident_mb_max = max(self.resident_mb_max, resident_mb(process.pid))
            time.sleep(0.1)


def load(bookie: BookieProcess, what: str, **options: object) -> list[dict[str, Any]]:
    """Run bench.bookie_load; its lines."""
    with loading(bookie, what, **options) as started:
        text, _ = started.communicate()
    if started.returncode:
        raise SystemExit(f"bench.bookie_load {what} failed (exit code {started.returncode})")
    return [json.loads(line) for line in text.splitlines()]


@contextlib.contextmanager
def loading(bookie: BookieProcess, what: str, **options: object) -> "Iterator[subprocess.Popen[str]]":
    """The same while the block runs."""
    arguments = [str(part) for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
    started = subprocess.Popen(
        [sys.executable, "-m", "bench.bookie_load", what, bookie.host, str(bookie.port), *arguments],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield started
    finally:
        if started.poll() is None:
            started.terminate()
            started.wait(30)


def make_ledgers(folder: Path, ledger_ids: Iterable[int]) -> None:
    """Records of ledgers whose one copy is on the bookie; while it does not run."""

    async def make() -> None:
        store = await open_store(f"rocksdb:{folder / 'metadata'}", LoopClock())
        await initialise_cluster(store)
        ledgers = LedgerStore(store)
        metadata = LedgerMetadata(
            ensemble_size=1, write_quorum=1, ack_quorum=1, digest_type=DigestType.CRC32C, password=b"",
            segments=(Segment(0, (NAME,)),),
        )  # fmt: skip
        for ledger_id in ledger_ids:
            await ledgers.create_with_id(ledger_id, metadata)
        await store.close()

    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(make())


def delete_ledgers(folder: Path, ledger_ids: Iterable[int]) -> None:
    """Remove their records; while the bookie does not run."""

    async def delete() -> None:
        store = await open_store(f"rocksdb:{folder / 'metadata'}", LoopClock())
        ledgers = LedgerStore(store)
        for ledger_id in ledger_ids:
            await ledgers.delete(ledger_id)
        await store.close()

    asyncio.run(delete())
