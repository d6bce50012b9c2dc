"""A bookie is assembled from its parts, and reports the progress of its start."""

import dataclasses

import pytest

from bookie.assembly import Lifecycle, storage_settings
from magnetar_core.runtime.types import MIB
from tests.support.serving import CONFIG, BookieMachines


@pytest.mark.parametrize(
    ("registered", "stopping", "failed", "running", "ready"),
    [
        (False, False, False, True, False),
        (True, False, False, True, True),
        (True, True, False, False, False),
        (True, False, True, False, False),
        (False, True, True, False, False),
    ],
)
def test_a_bookie_is_ready_from_its_registration_to_its_end(
    registered: bool, stopping: bool, failed: bool, running: bool, ready: bool
) -> None:
    lifecycle = Lifecycle(registered, stopping, OSError() if failed else None)
    assert (lifecycle.is_running, lifecycle.is_ready) == (running, ready)


def test_mebibytes_of_the_configuration_are_bytes_of_the_storage() -> None:
    settings = storage_settings(dataclasses.replace(CONFIG, write_cache_mib=3, journal_file_mib_max=5))
    assert (settings.write_cache_bytes, settings.journal.file_bytes_max) == (3 * MIB, 5 * MIB)


async def test_the_parts_are_fixed_and_share_one_storage() -> None:
    world = BookieMachines()
    async with world.serving() as bookie:
        parts = bookie.parts
        with pytest.raises(dataclasses.FrozenInstanceError):
            parts.server = parts.server  # type: ignore[misc]
        assert parts.server.storage is parts.storage
        assert parts.server.rules is parts.rules
        assert parts.server.checkpointer is parts.checkpointer
        assert parts.tls_listener is None
        assert bookie.operations.is_ready
    assert not bookie.operations.is_ready


async def test_a_bookie_that_was_not_started_has_no_parts() -> None:
    bookie = BookieMachines().bookie()
    with pytest.raises(AssertionError, match="not started"):
        _ = bookie.parts
    await bookie.stop()
