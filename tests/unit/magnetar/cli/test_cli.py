import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from magnetar import __version__
from magnetar.cli import doctor
from magnetar.cli import main as cli
from magnetar.cli.common import output as show
from magnetar.cli.messages import commands as messages_cli
from magnetar_core.runtime.types import ConfigurationError, MagnetarError
from tests.support.http_fake import HttpFake, http_fake

ADMIN = "/admin/v2/persistent/public/default"


def run(*arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(cli.main, arguments, **options)


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


EVERY = list(commands(cli.main))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpFake]:
    with http_fake() as made:
        monkeypatch.setenv("MAGNETAR_ADMIN_URL", made.url)
        yield made


def test_a_compaction_that_failed_is_told_with_the_reason_and_the_exit_code(fake: HttpFake) -> None:
    path = "/admin/v2/persistent/public/default/states"
    fake.answer("GET", f"{path}/partitions", {"partitions": 0})
    fake.answer("PUT", f"{path}/compaction", status=204)
    fake.answer("GET", f"{path}/compaction", {"status": "ERROR", "lastError": "the disks are full"})
    found = run("topics", "compact", "states", "--wait")
    assert found.exit_code == 2
    assert "states: the disks are full" in found.output
    told = run("topics", "compact", "states", "--json")
    assert (told.exit_code, json.loads(told.output)["topic"]) == (0, "states")
    fake.answer("PUT", f"{path}/compaction", {"reason": "A compaction is under way"}, status=409)
    assert "under way" in run("topics", "compact", "states").output


def test_what_waits_for_the_next_compaction_is_no_lag_and_no_trouble(fake: HttpFake) -> None:
    told: dict[str, Any] = {"type": "None", "msgBacklog": 6, "unackedMessages": 0, "consumers": []}
    told["blockedSubscriptionOnUnackedMsgs"] = False
    fake.answer("GET", f"{ADMIN}/kept/partitions", {"partitions": 0})
    fake.answer("GET", f"{ADMIN}/kept/stats", {"subscriptions": {"__compaction": told, "billing": told}})
    answered = run("lag", "kept", "--json")
    found = json.loads(answered.output)
    assert [one["subscription"] for one in found] == ["billing"]
    facts, _ = doctor._subscriptions(fake.url, "persistent://public/default/kept")
    assert [one.name for one in facts] == ["billing"]


@pytest.mark.parametrize(
    "command", [("topics", "stats"), ("topics", "create"), ("topics", "unload"), ("subscriptions", "list")]
)
def test_names_with_a_cluster_are_refused_with_that_reason(fake: HttpFake, command: tuple[str, ...]) -> None:
    found = run(*command, "persistent://a/lab/b/t")
    assert found.exit_code != 0
    assert "names with a cluster" in found.output
    assert fake.asked == []


# ------------------------------------------------------------------------------------------ help


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_every_command_explains_itself_and_its_options(path: tuple[str, ...]) -> None:
    found = run(*path, "--help")
    assert found.exit_code == 0
    command: Any = cli.main
    for name in path:
        command = command.commands[name]
    assert command.help
    assert command.help.splitlines()[0].rstrip().endswith((".", ":"))
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, f"{option.name} of {' '.join(path)} has no help"
            assert option.opts[0] in found.output


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_examples_are_commands_that_can_be_typed(path: tuple[str, ...]) -> None:
    command: Any = cli.main
    for name in path:
        command = command.commands[name]
    examples = [line for line in (command.help or "").splitlines() if line.strip().startswith("Example:")]
    assert examples or isinstance(command, click.Group), f"{' '.join(path)} has no example"
    for line in examples:
        typed = line.partition("Example:")[2].split()
        assert typed[: len(path) + 1] == ["magnetar", *path]
        arguments = typed[len(path) + 1 :]
        command.make_context(typed[0], arguments, resilient_parsing=False)


def test_help_answers_without_the_heavy_libraries() -> None:
    program = (
        "import sys; from click.testing import CliRunner; from magnetar.cli.main import main;"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0;"
        "print([name for name in ('aiohttp', 'kazoo', 'pulsar', '_pulsar', 'rocksdict', 'google.protobuf', 'uvloop')"
        " if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_version_is_shown() -> None:
    assert run("--version").output == f"magnetar, version {__version__}\n"


# ---------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("error", "code"), [(ConfigurationError("a setting is wrong"), 1), (MagnetarError("a disk is full"), 2)]
)
def test_our_errors_are_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: MagnetarError, code: int
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("magnetar.processes.servers.run_bookie", fail)
    found = run("bookie")
    assert found.exit_code == code
    assert found.stderr == f"magnetar: {error}\n"
    assert found.stdout == ""


def test_a_daemon_ends_with_its_own_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        "magnetar.processes.servers.run_broker", lambda path, processes: 7 if path == tmp_path / "b.conf" else 1
    )
    assert run("broker", "--config", str(tmp_path / "b.conf")).exit_code == 7


def test_options_of_standalone_are_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def run_standalone(*given: Any, **named: Any) -> int:
        seen.append((given, named))
        return 0

    monkeypatch.setattr("magnetar.processes.standalone.run_standalone", run_standalone)
    words = ("standalone", "--data", "d", "--bookies", "3", "--port", "0", "--web-port", "1", "--grpc-port", "2")
    for more, is_moved in (((), False), (("--moved",), True)):
        assert run(*words, *more).exit_code == 0
        ports = {"service_port": 0, "web_port": 1, "grpc_port": 2, "first_bookie_port": None}
        rest = {"secure": None, "forget_doubt": False, "is_moved": is_moved}
        assert seen.pop() == ((Path("d"), None), {"bookies": 3, **ports, **rest})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["standalone", "--port", "65536"], "'--port': 65536 is not in the range"),
        (["standalone", "--grpc-port", "x"], "'--grpc-port': 'x' is not a valid integer"),
        (["standalone", "--web-port", "-1"], "'--web-port': -1 is not in the range"),
        (["standalone", "--bookies", "0"], "'--bookies': 0 is not in the range"),
        (["cluster", "up", "--brokers", "0"], "'--brokers': 0 is not in the range"),
        (["topics", "create", "t", "--partitions", "-1"], "-1 is not in the range"),
        (["produce", "t"], "standard input is empty: give messages with -m, a file with -f, or pipe"),
        (["produce", "t", "-m", "x", "-p", "colour"], "-p colour: expected NAME=VALUE"),
        (["produce", "t", "-f", "/nowhere/x"], "No such file"),
        (["consume", "t", "-t", "greedy"], "'greedy' is not one of"),
        (["consume", "t", "-n", "-5"], "-5 is not in the range"),
        (["consum", "t"], "Did you mean 'consume'"),
    ],
)  # fmt: skip
def test_what_is_typed_wrongly_is_said(arguments: list[str], words: str) -> None:
    found = run(*arguments)
    assert found.exit_code == 2
    assert words in found.stderr
    assert "Traceback" not in found.output


# ---------------------------------------------------------------------------------------- topics


def test_topics_are_listed_with_their_partitions(fake: HttpFake) -> None:
    name = "persistent://public/default/"
    fake.answer("GET", ADMIN, [f"{name}b", f"{name}p-partition-1", f"{name}p-partition-0", f"{name}a-partition-0"])
    fake.answer("GET", f"{ADMIN}/partitioned", [f"{name}p"])
    fake.answer("GET", f"{ADMIN}/p/partitions", {"partitions": 2})
    found = run("topics", "list")
    assert found.exit_code == 0
    assert found.output.splitlines() == [f"{name}p  (2 partitions)", f"{name}a-partition-0", f"{name}b"]


def test_a_name_that_would_steer_the_terminal_is_written_out_and_deleted_as_it_is(fake: HttpFake) -> None:
    name = "persistent://public/default/a\x1b[2J\nb"
    fake.answer("GET", ADMIN, [name])
    fake.answer("GET", f"{ADMIN}/partitioned", [])
    assert run("topics", "list").output == "persistent://public/default/a\\x1b[2J\\nb\n"
    path = f"{ADMIN}/a%1B%5B2J%0Ab"
    fake.answer("GET", f"{path}/subscriptions", ["s\u202e"])
    assert run("subscriptions", "list", name).output == "s\\u202e\n"
    fake.answer("GET", f"{path}/partitions", {"partitions": 0})
    fake.answer("DELETE", f"{path}?force=false", status=204)
    assert run("topics", "delete", name, "--yes").output == "deleted\n"
    fake.answer("GET", f"{ADMIN}/t/subscriptions", {"reason": f"{name} is not there"}, status=404)
    refused = run("subscriptions", "list", "t").stderr
    assert "\x1b" not in refused
    assert "a\\x1b[2J" in refused


def test_topics_are_created_and_deleted(fake: HttpFake) -> None:
    fake.answer("PUT", f"{ADMIN}/t", status=204)
    fake.answer("PUT", f"{ADMIN}/p/partitions", status=204)
    fake.answer("GET", f"{ADMIN}/t/partitions", {"partitions": 0})
    fake.answer("DELETE", f"{ADMIN}/t?force=false", status=204)
    fake.answer("GET", f"{ADMIN}/p/partitions", {"partitions": 4})
    fake.answer("DELETE", f"{ADMIN}/p/partitions?force=true", status=204)
    assert run("topics", "create", "t").output == "created\n"
    assert run("topics", "create", "p", "--partitions", "4").output == "created\n"
    refused = run("topics", "delete", "t")
    assert (refused.exit_code, refused.stderr) == (
        2, "magnetar: Delete t with all its messages and subscriptions? Nobody can be asked here: add --yes\n"
    )  # fmt: skip
    assert run("topics", "delete", "t", "--yes").output == "deleted\n"
    assert run("topics", "delete", "p", "--force").output == "deleted\n"
    assert run("topics", "create", "-p", "4", "p", "--json").output == '{\n  "topic": "p",\n  "partitions": 4\n}\n'
    assert run("topics", "delete", "t", "-y", "--json").output == '{\n  "topic": "t"\n}\n'
    bodies = [asked.body for asked in fake.asked if asked.method == "PUT"]
    assert bodies == [None, 4, 4]


STATS = {
    "msgInCounter": 12, "msgOutCounter": 5, "storageSize": 1536, "publishers": [{}, {}],
    "subscriptions": {
        "slow": {"type": "Shared", "msgBacklog": 1000, "unackedMessages": 5, "consumers": [{}]},
        "a": {"type": "None", "msgBacklog": 0, "unackedMessages": 0, "consumers": []},
    },
}  # fmt: skip


def test_stats_are_a_table_or_everything_as_json(fake: HttpFake) -> None:
    import json

    fake.answer("GET", f"{ADMIN}/t/partitions", {"partitions": 0})
    fake.answer("GET", f"{ADMIN}/t/stats", STATS)
    assert run("topics", "stats", "t").output.splitlines() == [
        "12 messages in, 5 out; 1.5 KiB stored; 2 producers",
        "subscription  type    backlog  unacknowledged  consumers",
        "a             None    0        0               0",
        "slow          Shared  1000     5               1",
    ]
    assert json.loads(run("topics", "stats", "t", "--json").output) == STATS


def test_a_refusal_of_the_broker_is_one_line(fake: HttpFake) -> None:
    fake.answer("PUT", f"{ADMIN}/t", {"reason": "This topic already exists"}, status=409)
    found = run("topics", "create", "t")
    assert found.exit_code == 2
    assert found.stderr == f"magnetar: This topic already exists (HTTP 409 from {fake.url}{ADMIN}/t)\n"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (5 * 2**20, "5.0 MiB"), (2**30, "1.0 GiB"),
     (2**40, "1.0 TiB"), (2**50, "1024.0 TiB")],
)  # fmt: skip
def test_sizes_have_the_unit_that_fits(size_bytes: int, text: str) -> None:
    assert show.size(size_bytes) == text


def test_a_table_has_straight_columns(capsys: pytest.CaptureFixture[str]) -> None:
    show.table(("a", "long head"), [("longer", "x"), ("", "yy")])
    assert capsys.readouterr().out == "a       long head\nlonger  x\n        yy\n"


# -------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize("verb", [["produce", "t", "-m", "x"], ["consume", "t"], ["read", "t"]])
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("pulsar://127.0.0.1:{dead}", "no broker answers (127.0.0.1:"),
        ("pulsar://127.0.0.1:{dead},127.0.0.1:{dead}", "; 127.0.0.1:"),
        ("127.0.0.1:6650", "is not a service URL: write pulsar://host:port"),
        ("ftp://127.0.0.1:8080", "is not a service URL"),
        ("pulsar://127.0.0.1:x", "is not a service URL"),
        ("pulsar://", "is not a service URL"),
        ("pulsar://[::1", "is not a service URL"),
    ],
)
def test_a_broker_that_is_not_there_is_said_at_once(
    unused_tcp_port: int, verb: list[str], url: str, words: str
) -> None:
    found = run(*verb, "--service-url", url.format(dead=unused_tcp_port))
    assert found.exit_code == 2
    assert words in found.stderr
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize("start", ["soon", "1", "1:", ":1", "a:b", "1:-2", "²:1"])
def test_a_place_to_read_from_that_is_none_is_said_before_anybody_is_asked(start: str) -> None:
    found = run("read", "t", "--from", start, "--service-url", "pulsar://127.0.0.1:1")
    assert found.exit_code == 2
    assert found.stderr.startswith(f"magnetar: {start!r} is not a place in a topic: write earliest, latest, the id of")


def test_properties_are_split_at_the_first_equals_sign() -> None:
    assert messages_cli.properties_of(("a=1", "b=x=y", "c=")) == {"a": "1", "b": "x=y", "c": ""}


# --------------------------------------------------------------------------------------- cluster


@pytest.mark.parametrize("verb", ["status", "down"])
def test_without_a_cluster_the_way_to_one_is_told(tmp_path: Path, verb: str) -> None:
    found = run("cluster", verb, "--directory", str(tmp_path / "c"))
    assert found.exit_code == 2
    assert f"no cluster in {tmp_path / 'c'}; start one with `magnetar cluster up" in found.stderr


def test_a_standalone_says_that_it_is_one_process() -> None:
    found = run("standalone", "--processes", "2")
    assert found.exit_code == 2
    assert "a standalone is one process" in found.output


@pytest.mark.parametrize("verb", ["broker", "bookie"])
def test_a_number_of_processes_that_is_none_is_refused(verb: str) -> None:
    found = run(verb, "--processes", "many")
    assert found.exit_code == 2
    assert "expected a number, 1 or more, or auto" in found.output
