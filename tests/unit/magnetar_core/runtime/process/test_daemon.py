"""The behaviour of a server process after its start."""

import os
import subprocess
import sys

import pytest

from magnetar_core.runtime.process.daemon import EXIT_FAILED, EXIT_OK, PART_OF_SERVICE

PROGRAM = """
import gc
from magnetar_core.runtime.process.daemon import run

async def start(parts, shutdown):
    parts.add("look", look)
    asyncio.get_running_loop().call_soon(shutdown.request)

async def look():
    print(gc.get_freeze_count() > 1000, gc.get_threshold()[0])

import asyncio
raise SystemExit(run(start))
"""


def test_a_server_that_is_up_searches_for_cycles_seldom_and_not_in_what_its_start_made() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "True 10000\n"


PART = """
import asyncio, time
from magnetar_core.runtime.process import daemon

daemon.END_S = 0.2

def hang():
    print("hangs", flush=True)
    {what}

async def start(parts, shutdown):
    asyncio.get_running_loop().call_later(0.1, hang)

raise SystemExit(daemon.run(start))
"""


@pytest.mark.parametrize(("what", "code"), [("pass", EXIT_OK), ("time.sleep(600)", EXIT_FAILED)])
def test_a_part_of_a_service_ends_with_it_even_if_its_loop_hangs(what: str, code: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PART.format(what=what)],
        env={**os.environ, PART_OF_SERVICE: "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as part:
        try:
            assert part.stdout is not None
            assert part.stdout.readline() == "hangs\n"
            assert part.poll() is None
            assert part.stdin is not None
            part.stdin.close()  # as when the service is killed
            assert part.wait(60) == code
        finally:
            part.kill()
