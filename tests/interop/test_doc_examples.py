"""The examples of Apache's documentation, at our broker and at Apache's, side by side.

Both brokers get the same lines in the same order (`doc_examples`): first the commands, with the tool, then the calls.
What ours answers otherwise stands in `doc_differences` with a reason, and what stands there must still be so. The
counts go into docs/INTEROP.md.
"""

import http.client
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from tests.interop import admin_tool
from tests.interop.admin_table import Result, Verdict, refuses, verdict
from tests.interop.admin_tool import Said
from tests.interop.doc_differences import DIFFERENT, REFUSED
from tests.interop.doc_examples import PAGES, WORLD, is_call
from tests.support.interop_matrix import Examples
from tests.support.mixed_cluster import Brand, MixedCluster, compile_java
from tests.support.processes import client_of

HERE: Final = Path(__file__).parent
TENANTS: Final = {"commands": "shop", "calls": "store"}
MESSAGES: Final = 10
CALL_TIMEOUT_S: Final = 30.0
"""As for a command: a call that takes longer has hung."""

Cell = Callable[[str, str], None]
Answers = dict[str, list[Result]]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_java([HERE / "java" / "AdminCommands.java"], tmp_path_factory.mktemp("docs") / "classes")


def filled(line: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        line = line.replace(f"<{name}>", value)
    return line


def call(url: str, line: str) -> Said:
    """Makes one call. `exit` is the status, 0 for 200."""
    method, _, rest = line.partition(" ")
    path, _, body = rest.partition(" ")
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=CALL_TIMEOUT_S)
    try:
        connection.request(method, path, body or None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode("latin-1")
    except TimeoutError:
        return Said(admin_tool.HUNG, "")
    finally:
        connection.close()
    return Said(0 if answer.status == 200 else answer.status, text)


def verdict_of_call(line: str, apache: Said, ours: Said) -> Verdict:
    """Statuses have to be the same, but where ours refuses by name."""
    if apache.exit == ours.exit or ours.exit == admin_tool.HUNG:
        return verdict(line, apache, ours)
    return Verdict.REFUSED if ours.exit and refuses(ours.text) else Verdict.DIFFERENT


def said_by(brand: Brand, classes: Path, folder: Path) -> dict[str, Said]:
    """What is answered to each line of each page, at a new broker of this brand; keys are page and number."""
    with MixedCluster(folder / "cluster", copies=1) as cluster:
        cluster.start_zookeeper()
        cluster.initialise(brand)
        cluster.add("bookie", brand)
        broker = cluster.add("broker", brand)
        admin_tool.make_files(folder / "files")
        known = {"files": str(folder / "files"), "broker": f"127.0.0.1:{broker.web_port}"}
        for tenant in TENANTS.values():
            lines = [filled(line, {**known, "t": tenant}) for line in WORLD]
            made = admin_tool.run(classes, broker.admin_url, [plain(line) for line in lines], {}, folder)
            failed = [(line, said) for line, said in zip(lines, made, strict=True) if said.exit != 0]
            assert not failed, failed
        places = {}
        with client_of(broker.service_url) as client:
            for tenant in TENANTS.values():
                producer = client.create_producer(f"persistent://{tenant}/goods/books")
                ids = [producer.send(b"book %d" % number) for number in range(MESSAGES)]
                place = ids[MESSAGES // 2]
                places[tenant] = {"t": tenant, "ledger": str(place.ledger_id()), "entry": str(place.entry_id())}
        numbered = [(f"{page} {number}", line) for page, lines in PAGES.items() for number, line in enumerate(lines)]
        commands = [(key, line) for key, line in numbered if not is_call(line)]
        values = {**known, **places[TENANTS["commands"]]}
        answers = admin_tool.run(
            classes, broker.admin_url, [plain(filled(line, values)) for _, line in commands], {}, folder
        )
        said = {key: one for (key, _), one in zip(commands, answers, strict=True)}
        values = {**known, **places[TENANTS["calls"]]}
        said |= {key: call(broker.admin_url, filled(line, values)) for key, line in numbered if is_call(line)}
        if brand == "ours":
            assert "Traceback" not in broker.log.read_text(errors="replace"), broker.log_tail(60)
        return said


def differing(apache: Any, ours: Any, place: str = "") -> list[str]:
    """Where two answers differ: the members of JSON, else the whole."""
    if isinstance(apache, dict) and isinstance(ours, dict):
        found = []
        for name in sorted(apache.keys() | ours.keys()):
            found += differing(apache.get(name, "(not there)"), ours.get(name, "(not there)"), f"{place}/{name}")
        return found
    return [] if apache == ours else [f"{place} Apache {json.dumps(apache)[:600]}  ours {json.dumps(ours)[:600]}"]


def plain(line: str) -> str:
    """For the tool's runner, which fills in braces itself."""
    return line.replace("{", "{{").replace("}", "}}")


@pytest.fixture(scope="module")
def answers(classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """The lines of each page with the answers of both brokers, which run at the same time."""
    folders = {brand: tmp_path_factory.mktemp(brand) for brand in ("apache", "ours")}
    with ThreadPoolExecutor(2) as pool:
        theirs = pool.submit(said_by, "apache", classes, folders["apache"])
        ours = pool.submit(said_by, "ours", classes, folders["ours"])
        both = theirs.result(), ours.result()
    found: Answers = {}
    for page, lines in PAGES.items():
        for number, line in enumerate(lines):
            apache, mine = (said[f"{page} {number}"] for said in both)
            judged = (verdict_of_call if is_call(line) else verdict)(line, apache, mine)
            found.setdefault(page, []).append(Result(line, apache, mine, judged))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page(answers: Answers, cell: Cell, examples: Callable[[Examples], None], page: str) -> None:
    """Each is answered as Apache answers it, or refused by name; differences are listed, with their reasons."""
    cell("every example of Apache's documentation of the admin API, as with Apache or listed below", "our broker")
    listed = {Verdict.DIFFERENT: DIFFERENT, Verdict.REFUSED: REFUSED}
    wrong = []
    for result in answers[page]:
        reason = listed.get(result.verdict, {}).get(result.line)
        if result.verdict is not Verdict.SAME and reason is None:
            both = [admin_tool.comparable(said) for said in (result.apache, result.ours)]
            wrong.append(
                f"{result.verdict.value}: {result.line} ({result.apache.exit}, ours {result.ours.exit})\n"
                + "\n".join(f"  {one}" for one in differing(*both))
            )
    examples(
        Examples(
            page,
            sum(each.verdict is Verdict.SAME for each in answers[page]),
            sum(each.verdict is Verdict.REFUSED for each in answers[page]),
            tuple(
                (each.line, listed.get(each.verdict, {}).get(each.line, "no reason is known"))
                for each in answers[page]
                if each.verdict is not Verdict.SAME
            ),
        )
    )
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("listed", "kind"), [(DIFFERENT, Verdict.DIFFERENT), (REFUSED, Verdict.REFUSED)])
def test_what_is_listed_is_still_so(answers: Answers, listed: dict[str, str], kind: Verdict) -> None:
    needed = {result.line for results in answers.values() for result in results if result.verdict is kind}
    assert sorted(set(listed) - needed) == []
