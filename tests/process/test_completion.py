"""`magnetar completion`, typed into the shells that are here: commands, options and topics, by the tab key."""

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes import Standalone
from tests.support.shell import run_command
from tests.support.warm import warm_folder

pytestmark = pytest.mark.process

PROMPT = "ready> "
STARTED = {"bash": ("bash", "--noprofile", "-i"), "zsh": ("zsh", "-i")}
FILES = {"bash": ".bashrc", "zsh": ".zshrc"}

# Without colours, marks around what is pasted, and questions about long lists.
TIMEOUT_S = 20.0

SETTINGS = {
    "bash": f"PS1='{PROMPT}'\nbind 'set enable-bracketed-paste off'\nbind 'set completion-query-items 0'\n",
    "zsh": f"PROMPT='{PROMPT}'\nunset zle_bracketed_paste\nunsetopt prompt_sp\nLISTMAX=1000\n",
}


class Terminal:
    """A shell at a terminal."""

    def __init__(self, master: int) -> None:
        self._master = master

    def type(self, text: str, expected: str) -> str:
        """Type *text*; returns what is shown until *expected* has come."""
        os.write(self._master, text.encode())
        shown, deadline = "", time.monotonic() + TIMEOUT_S
        while expected not in shown:
            left = deadline - time.monotonic()
            assert select.select([self._master], [], [], max(left, 0))[0], f"no {expected!r} in {shown!r}"
            data = os.read(self._master, 1 << 16).decode(errors="replace")
            shown += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x07", "", data)
        return shown


@contextmanager
def terminal(shell: str, home: Path, environment: dict[str, str]) -> Iterator[Terminal]:
    """*shell*, started as a person starts it, with *home* as the home folder."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        STARTED[shell], stdin=slave, stdout=slave, stderr=slave, cwd=home, start_new_session=True,
        env={**environment, "HOME": str(home), "TERM": "xterm", "COLUMNS": "200", "LINES": "50"},
    )  # fmt: skip
    os.close(slave)
    try:
        yield Terminal(master)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(master)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Of a person beside a standalone that has a topic."""
    with Standalone(tmp_path_factory.mktemp("completion") / "data") as standalone:
        addresses = {"MAGNETAR_ADMIN_URL": standalone.admin_url, "MAGNETAR_SERVICE_URL": standalone.service_url}
        made = {**os.environ, **addresses, "PATH": f"{warm_folder()}:{os.environ['PATH']}"}
        assert run_command("topics", "create", "invoices-of-may", env=made).returncode == 0
        yield made


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_tab_key_completes_commands_options_and_topics(
    shell: str, environment: dict[str, str], tmp_path: Path
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = run_command("completion", shell, env=environment).stdout
    (tmp_path / FILES[shell]).write_text(SETTINGS[shell] + script)
    with terminal(shell, tmp_path, environment) as typed:
        typed.type("", PROMPT)
        typed.type("magnetar subs\t", "subscriptions ")
        typed.type("\x15\r", PROMPT)
        typed.type("magnetar topics unl\t", "unload ")
        typed.type("\x15\r", PROMPT)
        typed.type("magnetar topics create x --part\t", "--partitions ")
        typed.type("\x15\r", PROMPT)
        typed.type("magnetar topics stats inv\t", "invoices-of-may ")
        typed.type("\x15\r", PROMPT)
        typed.type("magnetar topics exp\t", "export ")
        typed.type("\x15magnetar topics \t\t", "import")
