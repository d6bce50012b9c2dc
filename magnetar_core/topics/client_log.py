"""What brokers refuse, from the log of the official client: its own errors name the kind alone ("IncompatibleSchema").

The client logs into a pipe, one for the process: some of its loggers live as long as a thread of the process, whatever
becomes of the client for which they were made. A thread empties the pipe and keeps the last refusal.

The first client of a process chooses the logger of all that come later, also when it is closed (3.x). Where a program
has made one before, with a logger of its own, nothing is heard here, and errors are the client's own.
"""

import os
import re
import threading
from collections.abc import Callable
from typing import Any, Final

# The lines in which the client logs a refusal: its kind, and the broker's text; the text for a message.
_REFUSAL: Final = re.compile(
    r"Received (?:error response from server: (\w+)(?: \((.*)\))? -- req_id|send error from server: (.+))"
)
_ERROR: Final = " ERROR "
_MARK: Final = b"\0\n"

# How long a look waits for the thread; it is there in less than a millisecond, unless the process is being stopped.
_LOOK_S: Final = 5.0


def _ignore_line(text: str) -> None:
    """Nobody wants to hear it."""


class ClientLog:
    """The log of all clients of this process. Made by `client_log`."""

    def __init__(self) -> None:
        self._refusal = ""
        self._on_refusal: Callable[[str], None] = _ignore_line
        self._on_error: Callable[[str], None] = _ignore_line
        self._mark_has_come = threading.Event()
        """All that was logged before the mark has been read."""
        self._asking = threading.Lock()
        """There is one mark, so one at a time asks for the last refusal."""
        reading, self._writing = os.pipe()
        threading.Thread(target=self._listen, args=(reading,), name="client log", daemon=True).start()

    def logger(
        self, on_refusal: Callable[[str], None] = _ignore_line, on_error: Callable[[str], None] = _ignore_line
    ) -> Any:
        """For a new client; what was refused before is forgotten. *on_refusal* is called with what a broker says, and
        *on_error* with a line that the client logs as an error; both on another thread."""
        import pulsar

        self.forget()
        self._on_refusal, self._on_error = on_refusal, on_error
        return pulsar.FileLogger(pulsar.LoggerLevel.Warn, f"/dev/fd/{self._writing}")

    def last_refusal(self) -> str:
        """What the brokers refused last, in their words; empty if nothing."""
        with self._asking:
            self._mark_has_come.clear()
            os.write(self._writing, _MARK)  # it is read behind all that was logged before
            self._mark_has_come.wait(_LOOK_S)
            return self._refusal

    def forget(self) -> None:
        """What was refused up to now came right."""
        self.last_refusal()
        self._refusal = ""

    def _listen(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                if line.endswith(_MARK):
                    self._mark_has_come.set()
                else:
                    self._log_line(line.decode(errors="replace").rstrip())

    def _log_line(self, line: str) -> None:
        match = _REFUSAL.search(line)
        if match is not None:
            self._refusal = match[2] or match[3] or match[1]
            self._on_refusal(self._refusal)
        elif _ERROR in line:
            self._on_error(line)


_logs: dict[int, ClientLog] = {}
"""By process: one that was forked has no thread of its parent."""


def client_log() -> ClientLog:
    """The log of this process."""
    client_log = _logs.get(os.getpid())
    if client_log is None:
        client_log = _logs[os.getpid()] = ClientLog()
    return client_log
