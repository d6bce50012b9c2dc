"""Where a node of its own serves the management interface."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from autorecovery.config import AutoRecoveryConfig
from bookie.bookie import PortInUse
from magnetar.processes.autorecovery import serve_management
from magnetar.processes.bookies.settings import NodeConfig, read_auto_recovery_settings, read_node_settings
from magnetar_core.runtime.tasks import Parts
from magnetar_core.runtime.types import ConfigurationError
from tests.support.fake_bookies import fake_cluster


@asynccontextmanager
async def served(tokens: str = "", **settings: Any) -> AsyncIterator[str]:
    """The URL of the interface."""
    async with fake_cluster(1) as cluster:
        parts = Parts()
        try:
            client = await cluster.client()
            node, config = NodeConfig(**settings), AutoRecoveryConfig(tokens_file=tokens)
            yield await serve_management(
                node, config, cluster.store, client, cluster.clock, parts, root="/ledgers", tls=None
            )
        finally:
            await parts.stop()


async def status_of(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status


async def test_it_is_served_where_the_settings_say_so() -> None:
    async with served() as url:
        assert url == ""
    async with served(http_enabled=True, http_port=0) as url:
        for path in ("/heartbeat", "/manage/v1/openapi.json", "/manage/v1/bookies"):
            assert await status_of(url + path) == 200
        assert await status_of(url + "/manage/v1") == 404


async def test_a_port_that_is_taken_and_a_file_without_tokens_are_told_with_their_settings() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PortInUse, match="httpServerPort"):
            async with served(http_enabled=True, http_port=taken.getsockname()[1]):
                pass
    with pytest.raises(ConfigurationError, match="managementTokensFile"):
        async with served("/nowhere/tokens", http_enabled=True, http_port=0):
            pass


def test_one_file_has_the_settings_of_the_node_and_of_its_interface(tmp_path: Path) -> None:
    path = tmp_path / "conf"
    path.write_text(
        "httpServerEnabled=true\nhttpServerPort=8080\nhttpServerHost=::1\nmanagementTokensFile=/etc/tokens\n"
    )
    node, config = read_node_settings(path), read_auto_recovery_settings(path)
    assert (node.http_enabled, node.http_host, node.http_port) == (True, "::1", 8080)
    assert config.tokens_file == "/etc/tokens"
