"""The processes of a service: started together, kept running, stopped together.

Rules:

1. The service is ready when every process has said so; a process that ends before that ends the service.
2. Later a process that ends is started again, after a pause that doubles while it does not stay; the others go on.
3. A process is ended by SIGTERM, once, and has the time that it needs. It also ends by itself when the service
   ends without a word: its standard input is a pipe that nobody else holds (`daemon.PART_OF_SERVICE`).
4. Processes have sessions of their own: Ctrl-C at a terminal reaches the service, which stops them.
"""

import asyncio
import contextlib
import logging
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from typing import Final

from magnetar.processes.announced import Ready
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.config import ENVIRONMENT_PREFIX
from magnetar_core.runtime.pauses import GrowingPause
from magnetar_core.runtime.process.daemon import EXIT_CONFIGURATION, PART_OF_SERVICE
from magnetar_core.runtime.process.own_packages import python_environment
from magnetar_core.runtime.tasks import Bell, Tasks
from magnetar_core.runtime.types import ConfigurationError, MagnetarError

log = logging.getLogger(__name__)

# The pause before a process is started again: the first, and the longest.
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0

# A process that ran so long has stayed: the next pause is the first again.
_STAYED_S: Final = 60.0


class ProcessEnded(MagnetarError):
    """A process of the service ended before the service was ready."""


class Child:
    """One process of the service."""

    def __init__(self, number: int, command: Sequence[str], share: Mapping[str, str]) -> None:
        """*share*: the settings that are not those of the configuration."""
        self.number = number
        self._command = command
        self._share = share
        self.process: Process | None = None
        self.announced = Ready("", "")
        """What it announced when it was last ready."""
        self.is_ready = False

    @property
    def pid(self) -> int:
        return 0 if self.process is None else self.process.pid

    async def launch(self) -> Process:
        environment = {f"{ENVIRONMENT_PREFIX}{name}": text for name, text in self._share.items()}
        self.process = await asyncio.create_subprocess_exec(
            *self._command,
            env={**python_environment(os.environ), **environment, PART_OF_SERVICE: str(self.number)},
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,  # rule 4
        )
        return self.process

    def terminate(self) -> None:
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()


class Children:
    """All processes of the service."""

    def __init__(self, what: str, command: Sequence[str], shares: Sequence[Mapping[str, str]], clock: Clock) -> None:
        """*what*: `broker` or `bookie`, for texts. *command* starts one of them."""
        self._what = what
        self._clock = clock
        self.all = [Child(number, command, share) for number, share in enumerate(shares)]
        self._tasks = Tasks(f"processes of the {what} service")
        self._changed = Bell()
        self._failure: MagnetarError | None = None
        self._was_ready = False
        self._stopping = asyncio.Event()

    @property
    def ready(self) -> list[Child]:
        """The processes that can be asked now."""
        return [child for child in self.all if child.is_ready]

    async def start(self) -> None:
        """Start all; returns when all are ready (rule 1). Raises MagnetarError. `stop` may be called at any time."""
        assert not len(self._tasks), "a service starts its processes once"
        for child in self.all:
            self._tasks.spawn(self._keep_running(child), f"process {child.number}")
        while len(self.ready) < len(self.all):
            if self._failure is not None:
                raise self._failure
            await self._changed.rung()
        self._was_ready = True

    async def stop(self) -> None:
        """End all, and wait until they have ended (rule 3)."""
        self._stopping.set()
        for child in self.all:
            child.terminate()
        self._changed.ring()
        while len(self._tasks):
            await self._changed.rung()

    async def _keep_running(self, child: Child) -> None:
        try:
            pause = GrowingPause(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            while not self._stopping.is_set():
                began = self._clock.monotonic()
                code = await self._run(child)
                if self._stopping.is_set():
                    return
                if not self._was_ready:
                    self._failure = self._failure or _failure(self._what, child, code)
                    return
                if self._clock.monotonic() - began >= _STAYED_S:
                    pause.reset()
                pause_s = pause.next_s()
                log.error(
                    "%s process %d (pid %d) ended (%s); it is started again in %.1f s",
                    self._what, child.number, child.pid, _exit_text(code), pause_s,
                )  # fmt: skip
                await self._changed.until(self._stopping.is_set, self._clock, pause_s)
        finally:
            asyncio.get_running_loop().call_soon(self._changed.ring)

    async def _run(self, child: Child) -> int:
        """One life of a process; returns its exit code, negative for a signal."""
        process = await child.launch()
        if self._stopping.is_set():
            child.terminate()
        assert process.stdout is not None, "its output is a pipe"
        while line := await process.stdout.readline():
            ready = Ready.read(line)
            if ready is not None:
                # Not its whole sentence, by which people know that the service is ready.
                log.info("process %d: %s at %s", child.number, ready.what, ready.address)
                child.announced, child.is_ready = ready, True
                self._changed.ring()
        child.is_ready = False
        return await process.wait()


def _failure(what: str, child: Child, code: int) -> MagnetarError:
    text = (
        f"{what} process {child.number} ended before the service was ready ({_exit_text(code)}); "
        "the lines above say why"
    )
    return ConfigurationError(text) if code == EXIT_CONFIGURATION else ProcessEnded(text)


def _exit_text(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
