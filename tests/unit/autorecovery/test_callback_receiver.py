"""The receiver of docs/auto-recovery.md, word for word: it takes what is genuine, once, and refuses everything else."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autorecovery.callbacks.delivery import CannotPost
from autorecovery.callbacks.posts import HttpPoster
from autorecovery.callbacks.rules import TIMESTAMP, headers_of, make
from magnetar_core.bookkeeper.metadata.bookies.lifecycle_events import Event, EventKind, encode
from magnetar_core.runtime.clock import LoopClock
from tests.support.pages import blocks_of

PAGE = Path(__file__).parents[3] / "docs/auto-recovery.md"
SECRET = "0123456789abcdef"


def save_receiver(folder: Path) -> Path:
    """The program of the page, as a file."""
    (block,) = (one for one in blocks_of(PAGE.read_text()) if one.file == "receiver.py")
    path = folder / block.file
    path.write_text(block.text)
    return path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, str(save_receiver(tmp_path)), str(port)],
        env={**os.environ, "SECRET": SECRET}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}/", process
    finally:
        process.kill()
        process.wait()


async def post(poster: HttpPoster, url: str, body: bytes, headers: dict[str, str]) -> int:
    """The status, once the receiver is there."""
    while True:
        try:
            return (await poster.post(url, body, headers)).status
        except CannotPost:
            await asyncio.sleep(0.05)


async def test_the_receiver_of_the_page(receiver: tuple[str, subprocess.Popen[str]]) -> None:
    url, process = receiver
    callback = make("c1", url, SECRET, (), (), "me", 1)
    body = encode(Event("0000000001-aa", EventKind.MOVED, "b-1", "active", "draining", "me", "", 1))
    wall_ms = LoopClock().wall_ms()
    genuine = dict(headers_of(callback, "0000000001-aa", body, wall_ms))
    poster = HttpPoster()
    assert await post(poster, url, body, genuine) == 204
    assert await post(poster, url, body, genuine) == 204, "once more: it is confirmed, and not told of again"
    assert await post(poster, url, body.replace(b"b-1", b"b-2"), genuine) == 403
    assert await post(poster, url, body, {**genuine, TIMESTAMP: str(wall_ms // 1000 + 1)}) == 403
    assert await post(poster, url, body, dict(headers_of(callback, "x", body, wall_ms - 3_600_000))) == 403
    foreign = make("c1", url, "another secret of somebody", (), (), "me", 1)
    assert await post(poster, url, body, dict(headers_of(foreign, "x", body, wall_ms))) == 403
    await poster.close()
    process.terminate()
    said, _ = await asyncio.to_thread(process.communicate)
    assert said == "b-1 active draining\n"
