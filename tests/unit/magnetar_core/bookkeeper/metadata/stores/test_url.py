"""What names a metadata store."""

import pytest

from magnetar_core.bookkeeper.metadata.stores.url import open_store, zookeeper_hosts
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.types import ConfigurationError


def test_servers_have_the_port_of_zookeeper_if_they_name_none() -> None:
    assert zookeeper_hosts("a,b:2182,c:1/chroot") == {"a": ("a", 2181), "b:2182": ("b", 2182), "c:1": ("c", 1)}


@pytest.mark.parametrize("port", ["abc", "", "0", "65536", "-1", "2181x"])
async def test_a_port_that_is_none_is_named(port: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"zk:a:1,b:{port}: what stands behind b: is no port"):
        await open_store(f"zk:a:1,b:{port}", LoopClock())
