"""Connections never take the descriptors that storage needs."""

import asyncio
import logging
import os
import resource
import socket
from contextlib import closing, suppress
from itertools import count
from typing import cast

import pytest

from magnetar_core.runtime.process import descriptors as module
from magnetar_core.runtime.process.descriptors import Descriptors, guarded, raise_limit, reserved


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


@pytest.mark.parametrize(("most", "kept"), [(256, 128), (1_024, 512), (8_192, 4_096), (1 << 20, 4_096)])
def test_a_part_is_for_storage(most: int, kept: int) -> None:
    assert reserved(most) == kept
    assert Descriptors(lambda: most).for_connections == most - kept


def test_a_descriptor_of_the_reserve_is_refused_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    descriptors = Descriptors(lambda: 1_024)
    assert not descriptors.refuses(511, "10.0.0.1:5", 0.0)
    with caplog.at_level(logging.WARNING):
        assert [descriptors.refuses(512, "10.0.0.1:5", now_s) for now_s in (0.0, 1.0, 10.0)] == [True] * 3
    assert descriptors.refused == 3
    assert [line for line in caplog.messages if "10.0.0.1:5" in line and "the other 512 are for storage" in line]
    assert len(caplog.messages) == 2, "at most one line in ten seconds"


async def test_a_connection_above_it_is_closed_and_files_are_opened_all_the_same() -> None:
    """The numbers below the limit are in use for real; the reserve begins where the next connection would be."""
    loop = asyncio.get_running_loop()
    descriptors = Descriptors(lambda: 1 << 20)
    server = await loop.create_server(guarded(Echo, descriptors), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    admitted, to_admitted = await asyncio.open_connection(*address)
    to_admitted.write(b"before")
    assert await admitted.readexactly(6) == b"before"
    last = first_free()  # the client's end will be the last that fits
    most = next(number for number in count() if number - reserved(number) == last + 1)
    descriptors.limit = lambda: most
    refused, to_refused = await asyncio.open_connection(*address)
    with suppress(ConnectionError):
        assert await refused.read() == b""
    assert descriptors.refused == 1
    with open(os.devnull, "rb") as log_file:
        assert log_file.fileno() >= 0
    to_admitted.write(b"after")
    assert await admitted.readexactly(5) == b"after", "other clients go on"
    to_refused.close()
    descriptors.limit = lambda: 1 << 20
    again, to_again = await asyncio.open_connection(*address)
    to_again.write(b"again")
    assert await again.readexactly(5) == b"again"
    for writer in (to_admitted, to_again):
        writer.close()
    server.close()


def first_free() -> int:
    with closing(socket.socket()) as made:
        return made.fileno()


def test_the_soft_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    limits, made = [(1_024, 65_536)], []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[0])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: made.append(pair))
    assert raise_limit() == 65_536
    assert made == [(65_536, 65_536)]
    limits[0] = (1_024, resource.RLIM_INFINITY)
    assert raise_limit() == module.DESCRIPTORS_MAX
    assert made[1] == (module.DESCRIPTORS_MAX, resource.RLIM_INFINITY)
    limits[0] = (4_096, 4_096)
    assert (raise_limit(), len(made)) == (4_096, 2), "there is nothing to raise"


def test_a_limit_that_cannot_be_raised_stays(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_: int, pair: tuple[int, int]) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 10_240))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_limit() == 256
    assert "stays 256" in caplog.text
