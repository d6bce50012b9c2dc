"""Three machines on this one, for the page about production: `ssh`, `sudo` and `systemctl` that lead to them.

Each machine is a loopback address with a folder that stands for its root. `ssh ADDRESS COMMAND` runs the command with
the paths of that folder; `systemctl start UNIT` starts the server that the unit would start, and does not wait for
it: the units are of Type=exec.
"""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

ROOT_VARIABLE: Final = "MAGNETAR_TEST_MACHINES"
PATIENCE_S: Final = 90.0

# What has to be this machine's own address because all three are one machine here.
_BOUND: Final = {
    "zoo.cfg": "clientPortAddress={}\n",
    "bookie.conf": "bookieListenAddress={}\n",
    "broker.conf": "bindAddress={}\n",
}
_PATHS: Final = re.compile(r"(?<![\w.])/(etc|var/lib)/")


def install(folder: Path) -> dict[str, str]:
    """Put the commands into a folder; the variables with which they are found."""
    import shutil  # not above: each `ssh` of the page would load it

    commands = folder / "commands"
    commands.mkdir(parents=True)
    # Without `site`, which most of the time of `ssh` and `tee` would go into.
    here = {
        name: f'exec {sys.executable} {options} -m tests.support.machines {name} "$@"'
        for name, options in (("ssh", "-S"), ("tee", "-S"), ("systemctl", ""))
    }
    settings = "|".join(f"*/{name}" for name in _BOUND)
    here["tee"] = f'case "$1" in {settings}) {here["tee"]};; *) exec {shutil.which("tee")} "$@";; esac'
    # There is no user `magnetar` here.
    for name, does in (*here.items(), ("sudo", 'exec "$@"'), ("chown", "exit 0")):
        (commands / name).write_text(f"#!/bin/sh\n{does}\n")
        (commands / name).chmod(0o755)
    return {
        ROOT_VARIABLE: str(folder),
        "PATH": f"{commands}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }


def wait_ready(folder: Path) -> None:
    """Until all servers that were started are ready, for which a person would look at the log."""
    deadline = time.monotonic() + PATIENCE_S
    for pid_file in folder.glob("*/run/magnetar-*.pid"):
        pid, log = int(pid_file.read_text()), pid_file.with_suffix(".log")
        while " is ready" not in (said := log.read_text(errors="replace")):
            assert _is_running(pid), f"{pid_file.stem} has ended: {said[-3000:]}"
            assert time.monotonic() < deadline, f"{pid_file.stem} is not ready: {said[-3000:]}"
            time.sleep(0.02)


def kill_all(folder: Path) -> None:
    """At once: servers that have lost their ZooKeeper end slowly."""
    for path in folder.glob("*/run/*.pid"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(path.read_text()), signal.SIGKILL)


def main() -> None:
    name, *arguments = sys.argv[1:]
    if name == "ssh":
        _ssh(*arguments)
    elif name == "tee":
        _tee(*arguments)
    else:
        _systemctl(*arguments)


def _ssh(address: str, command: str) -> None:
    machine = Path(os.environ[ROOT_VARIABLE]) / address
    machine.mkdir(exist_ok=True)
    if "tar -" in command:  # paths in an archive are those below /
        command = re.sub(r"(?<![\w.])/(?=(etc|var/lib)/)", "", command).replace("tar -cz", "tar -cz -C .")
        command = command.replace("-C /", "-C .")
    else:
        command = _PATHS.sub(rf"{machine}/\1/", command)
    environ = {**os.environ, "MACHINE": str(machine), "ADDRESS": address}
    os.chdir(machine)
    os.execvpe("bash", ["bash", "-c", command], environ)


def _tee(path: str) -> None:
    """As `tee`, with the paths and the address of the machine in its settings."""
    text = sys.stdin.read()
    sys.stdout.write(text)
    address = os.environ["ADDRESS"]
    text = _PATHS.sub(rf"{os.environ['MACHINE']}/\1/", text).replace("0.0.0.0", address)
    Path(path).write_text(text + _BOUND[Path(path).name].format(address))


def _systemctl(verb: str, unit: str) -> None:
    machine = Path(os.environ["MACHINE"])
    pid_file = machine / "run" / f"{unit}.pid"
    if verb in ("stop", "restart"):
        _stop(pid_file)
    if verb in ("start", "restart"):
        _start(machine, unit, pid_file)


def _start(machine: Path, unit: str, pid_file: Path) -> None:
    pid_file.parent.mkdir(exist_ok=True)
    if unit == "zookeeper":
        # Not above: each `ssh` and `tee` of the page would take five times as long.
        from magnetar_core.bookkeeper.metadata.stores.zookeeper_server import find_pyspark_jars, zookeeper_command

        command = zookeeper_command(find_pyspark_jars(), machine / "etc/zookeeper/zoo.cfg", heap_mb=64)
    else:
        text = (Path(__file__).parents[2] / f"deploy/{unit}.service").read_text()
        found = re.search(r"^ExecStart=/opt/magnetar/bin/magnetar (.*)$", text, re.MULTILINE)
        assert found is not None
        command = [sys.executable, "-m", "magnetar", *shlex.split(_PATHS.sub(rf"{machine}/\1/", found[1]))]
    log = machine / "run" / f"{unit}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=machine, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    pid_file.write_text(str(process.pid))


def _stop(pid_file: Path) -> None:
    if not pid_file.exists():
        return
    pid = int(pid_file.read_text())
    deadline = time.monotonic() + PATIENCE_S
    number = signal.SIGTERM
    while _is_running(pid):
        if time.monotonic() > deadline:
            number = signal.SIGKILL
        os.kill(pid, number)
        time.sleep(0.02)
    pid_file.unlink()


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


if __name__ == "__main__":
    main()
