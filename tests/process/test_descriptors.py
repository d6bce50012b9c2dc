"""Idle connections that anybody may open, more than the process may have files: storage goes on, and so do clients."""

import contextlib
import signal
import socket
from pathlib import Path
from typing import Final

import pytest

from magnetar.inspect.broker_admin import AdminClient, AdminError
from tests.support.processes import Standalone, client_of, prepare, until

pytestmark = pytest.mark.process

TOPIC: Final = "persistent://public/default/load"
SOFT, HARD = 100, 300
AT_EACH_PORT: Final = 160


class Poor(Standalone):
    """It may have few files open, and at first fewer still."""

    def command(self, ports: tuple[int, int, int]) -> list[str]:
        limits = f'ulimit -Sn {SOFT} && ulimit -Hn {HARD} && exec "$@"'
        return ["sh", "-c", limits, "sh", *super().command(ports)]


def is_closed(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_idle_connections_leave_files_to_storage_and_a_way_in_to_others(tmp_path: Path) -> None:
    with Poor(tmp_path / "data") as server, contextlib.ExitStack() as stack:
        admin = AdminClient(server.admin_url)
        prepare(admin)
        with client_of(server.service_url) as client:
            producer = client.create_producer(TOPIC, batching_enabled=False)
            producer.send(b"before")
            idle = []
            for url in (server.admin_url, server.service_url):
                port = int(url.rpartition(":")[2])
                for _ in range(AT_EACH_PORT):
                    idle.append(stack.enter_context(socket.create_connection(("127.0.0.1", port))))
                    idle[-1].setblocking(False)
            until(lambda: sum(map(is_closed, idle)) >= 2 * AT_EACH_PORT - HARD // 2, "the others are closed")
            for number in range(50):
                producer.send(b"%d" % number)
        for one in idle:
            one.close()
        until(lambda: _answers(admin), "there is room again")
        assert admin.stats(TOPIC)["msgInCounter"] == 51
        assert server.stop(signal.SIGTERM) == 0
        assert f"the other {HARD // 2} are for storage" in server.errors


def _answers(admin: AdminClient) -> bool:
    try:
        return bool(admin.call("GET", "/admin/v2/clusters"))
    except AdminError:
        return False
