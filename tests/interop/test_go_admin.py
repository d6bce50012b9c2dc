"""Go's administration library, all methods of it, at our broker and at Apache's, side by side.

Both brokers get the same calls in the same order (`go_admin_calls`). The library decodes answers into types, so what
is read here is what a Go program sees: a number where a text is wanted is an error of its own. What our broker answers
otherwise, and what it refuses, must stand in `go_admin_differences` with a reason, and what stands there must still be
so.
"""

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from tests.interop import admin_tool
from tests.interop.admin_table import Result, Verdict, refuses, verdict
from tests.interop.admin_tool import Said
from tests.interop.go_admin_calls import GROUPS, WORLD, Call, shown
from tests.interop.go_admin_differences import DIFFERENT, REFUSED
from tests.process.test_secure_standalone import run as magnetar
from tests.process.test_secure_standalone import standalone
from tests.support.go_programs import build_go
from tests.support.mixed_cluster import Brand, MixedCluster, http_json
from tests.support.processes import client_of

HERE: Final = Path(__file__).parent
TOPIC: Final = "persistent://t/n/top"
MESSAGES: Final = 10
LIBRARY: Final = -2
"""The exit of a call that failed in the library itself: what it got does not fit its types, say."""
RUN_TIMEOUT_S: Final = 400

Cell = Callable[[str, str], None]
Answers = dict[str, list[Result]]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_go(HERE / "go_admin", tmp_path_factory.mktemp("go") / "admin")


def filled(value: Any, values: Mapping[str, str]) -> Any:
    """*value* with the texts in braces replaced; `{ledger}` and `{entry}` alone become numbers."""
    if isinstance(value, dict):
        return {name: filled(one, values) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [filled(one, values) for one in value]
    if not isinstance(value, str):
        return value
    text = re.sub(r"\{(\w+)\}", lambda found: values[found[1]], value)
    return int(text) if value in ("{ledger}", "{entry}") else text


def said(answer: dict[str, Any]) -> Said:
    """An answer of the program, as a command's: its exit is 0, a status, LIBRARY or HUNG."""
    if "answer" in answer:
        return Said(0, json.dumps([_opened(one) for one in answer["answer"]]))
    if "hung" in answer:
        return Said(admin_tool.HUNG, "")
    if "error" in answer:
        return Said(LIBRARY, answer["error"])
    return Said(answer["code"], answer["reason"])


def _opened(value: Any) -> Any:
    """Texts that hold JSON are compared as such."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def run(program: Path, config: Mapping[str, Any], calls: list[Any]) -> list[Said]:
    done = subprocess.run(
        [str(program), json.dumps(config)], input="\n".join(map(json.dumps, calls)) + "\n", capture_output=True,
        text=True, timeout=RUN_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answers = [said(json.loads(line)) for line in done.stdout.splitlines()]
    assert len(answers) == len(calls), done.stderr[-3000:]
    return answers


def said_by(brand: Brand, program: Path, folder: Path) -> list[Said]:
    """What is answered to the calls of all groups, at a new broker of this brand."""
    with MixedCluster(folder / "cluster", copies=1) as cluster:
        cluster.start_zookeeper()
        cluster.initialise(brand)
        cluster.add("bookie", brand)
        broker = cluster.add("broker", brand)
        admin_tool.make_files(folder / "files")
        values = {"files": str(folder / "files"), "broker": f"127.0.0.1:{broker.web_port}"}
        config = {"WebServiceURL": broker.admin_url}
        made = run(program, config, [filled(call, values) for call in WORLD])
        failed = [(call, one) for call, one in zip(WORLD, made, strict=True) if one.exit != 0]
        assert not failed, failed
        with client_of(broker.service_url) as client:
            producer = client.create_producer(TOPIC)
            ids = [producer.send(b"%d" % number, properties={"n": str(number)}) for number in range(MESSAGES)]
        place = ids[MESSAGES // 2]
        values |= {"ledger": str(place.ledger_id()), "entry": str(place.entry_id())}
        answers = run(program, config, [filled(call, values) for calls in GROUPS.values() for call in calls])
        assert http_json(f"{broker.admin_url}/admin/v2/tenants"), "the broker still answers"
        if brand == "ours":
            assert "Traceback" not in broker.log.read_text(errors="replace"), broker.log_tail(60)
        return answers


def judged(line: str, apache: Said, ours: Said) -> Verdict:
    """Codes have to be the same, and what fails in the library has to fail in the same words."""
    same = apache.exit == ours.exit
    if same and LIBRARY in (apache.exit, ours.exit):
        same = admin_tool.comparable(apache) == admin_tool.comparable(ours)
    if same or ours.exit == admin_tool.HUNG:
        return verdict(line, apache, ours)
    return Verdict.REFUSED if ours.exit and refuses(ours.text) else Verdict.DIFFERENT


@pytest.fixture(scope="module")
def answers(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """The calls of each group with the answers of both brokers, which run at the same time."""
    folders = {brand: tmp_path_factory.mktemp(brand) for brand in ("apache", "ours")}
    with ThreadPoolExecutor(2) as pool:
        theirs = pool.submit(said_by, "apache", program, folders["apache"])
        ours = pool.submit(said_by, "ours", program, folders["ours"])
        pairs = iter(zip(theirs.result(), ours.result(), strict=True))
    found: Answers = {}
    for group, calls in GROUPS.items():
        for line in map(shown, calls):
            pair = next(pairs)
            found.setdefault(group, []).append(Result(line, *pair, judged(line, *pair)))
    return found


def test_every_method_of_the_library_is_called(program: Path) -> None:
    listed = subprocess.run([str(program), "methods"], capture_output=True, text=True, check=True)
    called: set[Call] = {call[0] for calls in (*GROUPS.values(), WORLD) for call in calls}
    assert sorted(set(listed.stdout.split()) ^ called) == []


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_of_calls(answers: Answers, cell: Cell, group: str) -> None:
    """Each is answered as Apache answers it, or refused by name; differences are listed, with their reasons."""
    cell("every method of Go's administration library, as with Apache or listed with its reason", "our broker")
    wrong = []
    for result in answers[group]:
        listed = {Verdict.DIFFERENT: DIFFERENT, Verdict.REFUSED: REFUSED}.get(result.verdict)
        if result.verdict is Verdict.SAME or (listed is not None and name_in(listed, result.line)):
            continue
        both = [json.dumps(admin_tool.comparable(one))[:900] for one in (result.apache, result.ours)]
        wrong.append(
            f"{result.verdict.value}: {result.line}\n"
            f"  Apache {result.apache.exit} {both[0]}\n  ours   {result.ours.exit} {both[1]}"
        )
    assert not wrong, "\n".join(wrong)


def name_in(listed: Mapping[str, str], line: str) -> str | None:
    """The entry that speaks of this call: the call itself, its method, or its whole group."""
    method = line.split()[0]
    return next((key for key in (line, method, method.partition(".")[0]) if key in listed), None)


@pytest.mark.parametrize(("listed", "kind"), [(DIFFERENT, Verdict.DIFFERENT), (REFUSED, Verdict.REFUSED)])
def test_what_is_listed_is_still_so(answers: Answers, listed: dict[str, str], kind: Verdict) -> None:
    needed = {
        name_in(listed, result.line) for results in answers.values() for result in results if result.verdict is kind
    }
    assert sorted(set(listed) - needed) == []


@pytest.mark.parametrize("plugin", ["token", "org.apache.pulsar.client.impl.auth.AuthenticationToken"])
def test_the_library_over_tls_with_a_token(cell: Cell, program: Path, tmp_path: Path, plugin: str) -> None:
    cell("Go's administration library over TLS, with tokens", "our secured standalone")
    keys = tmp_path / "keys"
    made = ["Topics.Create", "persistent://public/default/orders", 0]
    with standalone(tmp_path) as (profile, *_):
        config = {
            "WebServiceURL": profile.admin_url,
            "TLSTrustCertsFilePath": str(keys / "ca.crt"),
            "AuthPlugin": plugin,
            "AuthParams": f"file:{keys / 'admin.token'}",
        }
        listed = ["Namespaces.GetTopics", "public/default"]
        first, second = run(program, config, [made, listed])
        assert (first.exit, second.exit) == (0, 0), (first, second)
        assert "persistent://public/default/orders" in second.text
        shop = magnetar("tokens", "create", "shop", "--secret-key", str(keys / "token.key")).strip()
        (forbidden,) = run(program, {**config, "AuthParams": json.dumps({"token": shop})}, [made])
        assert (forbidden.exit, "shop may not" in forbidden.text) == (403, True), forbidden
        (stranger,) = run(program, {**config, "AuthParams": "token:nonsense"}, [listed])
        assert stranger.exit == 401, stranger
        (untrusting,) = run(program, {**config, "TLSTrustCertsFilePath": ""}, [listed])
        assert (untrusting.exit, "certificate" in untrusting.text) == (LIBRARY, True), untrusting
