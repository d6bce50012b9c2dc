"""The command `magnetar` out of a process that has loaded it already: each command is a fork of that.

A new Python takes 0.15 s to load the command line, and the tests type a thousand commands. What is typed runs in a
process of its own all the same, with its own folder, environment, input and output. Servers are not for this: whoever
kills such a command does not reach its fork.
"""

import contextlib
import functools
import importlib
import json
import os
import pkgutil
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

# A Python without `site`, which starts in a hundredth of a second, hands the command over and waits for its end.
_COMMAND: Final = """\
#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as warm:
    warm.connect({path!r})
    asked = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(warm, [len(asked).to_bytes(4, "big")], [0, 1, 2])
    warm.sendall(asked)
    code = warm.recv(1)
sys.exit(code[0] if code else "the process of this command was lost")
"""


def warm_folder() -> Path:
    """A folder for PATH that has the command `magnetar`. It goes when this process ends, however it does."""
    return _started()[0]


@functools.cache
def _started() -> "tuple[Path, subprocess.Popen[bytes]]":
    """The folder and the warm process, which ends when nobody holds the other end of its input."""
    folder = Path(tempfile.mkdtemp(prefix="magnetar-warm-"))
    path, command = folder / "socket", folder / "magnetar"
    command.write_text(_COMMAND.format(python=sys.executable, path=str(path)))
    command.chmod(0o755)
    warm = subprocess.Popen(
        [sys.executable, "-m", "tests.support.warm", str(path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert warm.stdout is not None
    assert warm.stdout.readline() == b"warm\n"
    return folder, warm


def main() -> None:
    for name in ("magnetar.cli", "magnetar.inspect"):
        for module in pkgutil.iter_modules(importlib.import_module(name).__path__, f"{name}."):
            importlib.import_module(module.name)
    importlib.import_module("pulsar")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for forks
    path = Path(sys.argv[1])
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen(64)
        print("warm", flush=True)
        while sys.stdin not in select.select([sys.stdin, door], [], [])[0]:
            caller, _ = door.accept()
            if os.fork() == 0:
                door.close()
                _run(caller)
            caller.close()
    shutil.rmtree(path.parent)


def _run(caller: socket.socket) -> None:
    """Never returns."""
    code = 1
    try:
        size, streams, _, _ = socket.recv_fds(caller, 4, 3)
        data = b""
        while len(data) < int.from_bytes(size, "big"):
            data += caller.recv(1 << 20)
        arguments, folder, environment = json.loads(data)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.argv = ["magnetar", *arguments]
        sys.modules["__main__"].__package__ = None  # else the usage says `python -m …`
        code = _exit_code_of_main()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        with contextlib.suppress(OSError):
            caller.sendall(bytes([code]))
        os._exit(code)


def _exit_code_of_main() -> int:
    from magnetar.cli.main import main

    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main()
