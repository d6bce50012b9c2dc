"""Apache's `pulsar-admin` through each of its groups of commands, at our broker and at Apache's, side by side.

Both brokers get the same lines in the same order (`admin_commands`). What our broker answers otherwise, and what it
refuses, must stand in `admin_differences` with a reason, and what stands there must still be so.
`--write-admin-table FILE` renders docs/pulsar-admin.md.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.interop import admin_tool
from tests.interop.admin_commands import GROUPS, NOT_RUN, WORLD
from tests.interop.admin_differences import DIFFERENT, REFUSED
from tests.interop.admin_table import Result, Verdict, page, verdict
from tests.support.mixed_cluster import Brand, MixedCluster, compile_java, http_json, versions
from tests.support.processes import client_of

HERE: Final = Path(__file__).parent
TOPIC: Final = "persistent://t/n/top"
MESSAGES: Final = 10

Cell = Callable[[str, str], None]
Answers = dict[str, list[Result]]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_java([HERE / "java" / "AdminCommands.java"], tmp_path_factory.mktemp("admin") / "classes")


def said_by(brand: Brand, classes: Path, folder: Path) -> list[admin_tool.Said]:
    """What the tool says to each line of all groups, at a new broker of this brand."""
    with MixedCluster(folder / "cluster", copies=1) as cluster:
        cluster.start_zookeeper()
        cluster.initialise(brand)
        bookie, broker = cluster.add("bookie", brand), cluster.add("broker", brand)
        admin_tool.make_files(folder / "files")
        filled = {
            "files": str(folder / "files"),
            "broker": f"127.0.0.1:{broker.web_port}",
            "bookie": bookie.bookie_id,
        }
        made = admin_tool.run(classes, broker.admin_url, WORLD, filled, folder)
        failed = [(line, said) for line, said in zip(WORLD, made, strict=True) if said.exit != 0]
        assert not failed, failed
        with client_of(broker.service_url) as client:
            producer = client.create_producer(TOPIC)
            ids = [producer.send(b"%d" % number, partition_key=str(number % 3)) for number in range(MESSAGES)]
        place = {"ledger": str(ids[MESSAGES // 2].ledger_id()), "entry": str(ids[MESSAGES // 2].entry_id())}
        lines = [f"{group.partition(',')[0]} {line}" for group, lines in GROUPS.items() for line in lines]
        said = admin_tool.run(classes, broker.admin_url, lines, {**filled, **place}, folder)
        assert http_json(f"{broker.admin_url}/admin/v2/tenants"), "the broker still answers"
        if brand == "ours":
            assert "Traceback" not in broker.log.read_text(errors="replace"), broker.log_tail(60)
        return said


@pytest.fixture(scope="module")
def answers(classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """The lines of each group with the answers of both brokers, which run at the same time."""
    folders = {brand: tmp_path_factory.mktemp(brand) for brand in ("apache", "ours")}
    with ThreadPoolExecutor(2) as pool:
        theirs = pool.submit(said_by, "apache", classes, folders["apache"])
        ours = pool.submit(said_by, "ours", classes, folders["ours"])
        pairs = iter(zip(theirs.result(), ours.result(), strict=True))
    return {
        group: [Result(line, *(pair := next(pairs)), verdict(line, *pair)) for line in lines]
        for group, lines in GROUPS.items()
    }


@pytest.fixture(scope="module", autouse=True)
def table(request: pytest.FixtureRequest, answers: Answers, classes: Path) -> Iterator[None]:
    """Writes docs/pulsar-admin.md, whatever the tests say: it shows what was answered."""
    yield
    target = request.config.getoption("--write-admin-table")
    if target:
        text = page(answers, DIFFERENT, REFUSED, NOT_RUN, versions()["Pulsar"])
        Path(target).write_text(text, encoding="utf-8")


def test_every_command_of_the_tool_is_run(classes: Path) -> None:
    run = {(group.partition(",")[0], line.split()[0]) for group, lines in GROUPS.items() for line in lines}
    run |= {(group, command) for group, command in (name.split() for name in NOT_RUN)}
    there = {(group, command) for group, commands in admin_tool.catalogue(classes).items() for command in commands}
    assert sorted(there - run) == []
    assert sorted(run - there) == []


# Apache's broker deletes a namespace while its own reader of its `__change_events` makes a cursor there, and fails now
# and then on a busy machine; the same line succeeds when it is said again.
_RACE: Final = "KeeperErrorCode = Directory not empty"


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_of_commands(answers: Answers, cell: Cell, group: str) -> None:
    """Each is answered as Apache answers it, or refused by name; differences are listed, with their reasons."""
    cell("every command of `pulsar-admin`, as with Apache or listed in [pulsar-admin](pulsar-admin.md)", "our broker")
    name = group.partition(",")[0]
    wrong = []
    raced = {result.line for result in answers[group] if _RACE in json.dumps(admin_tool.comparable(result.apache))}
    for result in answers[group]:
        if result.line in raced and result.verdict is not Verdict.BROKEN:
            continue
        listed = {
            Verdict.DIFFERENT: name_in(DIFFERENT, name, result.line),
            Verdict.REFUSED: name_in(REFUSED, name, result.line),
        }
        if result.verdict is Verdict.BROKEN or not listed.get(result.verdict, True):
            shown = [json.dumps(admin_tool.comparable(said))[:600] for said in (result.apache, result.ours)]
            wrong.append(f"{result.verdict.value}: {name} {result.line}\n  Apache {shown[0]}\n  ours   {shown[1]}")
    assert not wrong, "\n".join(wrong)


def name_in(listed: dict[str, str], group: str, line: str) -> str | None:
    """The entry that speaks of this line: the line itself, its command, or its whole group."""
    command = line.split()[0]
    return next((key for key in (f"{group} {line}", f"{group} {command}", group) if key in listed), None)


@pytest.mark.parametrize(("listed", "kind"), [(DIFFERENT, Verdict.DIFFERENT), (REFUSED, Verdict.REFUSED)])
def test_what_is_listed_is_still_so(answers: Answers, listed: dict[str, str], kind: Verdict) -> None:
    needed = {
        name_in(listed, group.partition(",")[0], result.line)
        for group, results in answers.items()
        for result in results
        if result.verdict is kind
    }
    assert sorted(set(listed) - needed) == []
