"""The behaviour of a server process after its start."""

import subprocess
import sys

PROGRAM = """
import gc
from magnetar_core.runtime.daemon import run

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
