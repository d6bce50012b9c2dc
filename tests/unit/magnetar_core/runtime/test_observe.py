"""Prometheus text and log lines."""

import asyncio
import json
import logging
import os
from collections.abc import Iterator
from logging.handlers import WatchedFileHandler
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from magnetar_core.runtime.observe import (
    GROUPS_MAX,
    SAMPLES_PER_TURN,
    GroupedErrors,
    Metrics,
    Sample,
    Summary,
    start_logging,
)
from magnetar_core.runtime.types import ConfigurationError
from tests.support.manual_clock import ManualClock


def test_the_text_says_what_is_a_counter_and_what_a_gauge() -> None:
    metrics = Metrics()
    metrics.add(
        lambda: [
            Sample("made_total", 3, (("bookie", "b"),), "things made"),
            Sample("open", 1.5),
            Sample("bookie_WRITE_BYTES", 10, (), "bytes", "counter"),
        ]
    )
    assert metrics.exposition().decode() == (
        "# HELP made_total things made\n"
        "# TYPE made_total counter\n"
        'made_total{bookie="b"} 3.0\n'
        "# HELP open open\n"
        "# TYPE open gauge\n"
        "open 1.5\n"
        "# HELP bookie_WRITE_BYTES bytes\n"
        "# TYPE bookie_WRITE_BYTES counter\n"
        "bookie_WRITE_BYTES 10.0\n"
    )


def test_a_summary_has_its_quantiles_its_number_and_its_sum() -> None:
    metrics = Metrics()
    for success in ("false", "true"):
        summary = Summary("took", {0.5: 1.25, 1.0: float("nan")}, 4, 5.0, (("success", success),), "how long")
        metrics.add(lambda summary=summary: [summary])  # type: ignore[misc]
    lines = metrics.exposition().decode().splitlines()
    assert lines[:6] == [
        "# HELP took how long",
        "# TYPE took summary",
        'took{quantile="0.5",success="false"} 1.25',
        'took{quantile="1.0",success="false"} NaN',
        'took_count{success="false"} 4.0',
        'took_sum{success="false"} 5.0',
    ]
    assert len(lines) == 10
    (family,) = text_string_to_metric_families(metrics.exposition().decode())
    assert (family.name, family.type, len(family.samples)) == ("took", "summary", 8)


def test_labels_and_help_may_hold_anything() -> None:
    metrics = Metrics()
    metrics.add(lambda: [Sample("x", 1, (("path", 'a\\b"c\nd'),), "two\nlines \\")])
    (family,) = text_string_to_metric_families(metrics.exposition().decode())
    assert family.samples[0].labels == {"path": 'a\\b"c\nd'}
    assert family.documentation == "two\nlines \\"


def test_a_name_cannot_be_two_things() -> None:
    metrics = Metrics()
    metrics.add(lambda: [Sample("x", 1), Sample("x", 1, kind="counter")])
    with pytest.raises(AssertionError, match="x is a gauge and a counter"):
        metrics.exposition()


def test_a_source_that_was_taken_out_is_not_asked() -> None:
    metrics = Metrics()
    metrics.add(lambda: [Sample("x", 1)])()
    assert metrics.exposition() == b""


@pytest.mark.parametrize("as_json", [False, True])
def test_fields_of_a_record_are_part_of_its_line(
    as_json: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    start_logging(as_json=as_json)
    fields = {"operation": "journal group", "queue_ms": 1.5, "bookies": {"b:1": {"answer_ms": None}}, "level": "x"}
    logging.getLogger("room").warning("slow %s", "one", extra={"fields": fields})
    line = capsys.readouterr().err
    if as_json:
        found = json.loads(line)
        assert (found["level"], found["message"], found["queue_ms"]) == ("WARNING", "slow one", 1.5)
        assert found["bookies"] == {"b:1": {"answer_ms": None}}
    else:
        assert line.endswith(
            'room  slow one  operation="journal group" queue_ms=1.5 bookies={"b:1":{"answer_ms":null}} level=x\n'
        )


def test_a_name_makes_no_line_of_its_own(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    start_logging()
    name = "x\n2026-01-02T03:04:05.678Z ERROR broker  all is lost\x1b[2J"
    logging.getLogger("room").warning("no producer for %s", name, extra={"fields": {"topic": name}})
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert "\x1b" not in text
    assert text.count("x\\n2026") == 2


@pytest.fixture
def log_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    path = tmp_path / "broker.log"
    umask = os.umask(0o022)
    start_logging(path=str(path))
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o640, "who is no user of it does not read it"
    yield path
    root.handlers[0].close()


def test_a_log_file_that_was_moved_away_begins_anew(log_file: Path) -> None:
    log = logging.getLogger("room")
    log.warning("before")
    log_file.rename(log_file.with_suffix(".log.1"))
    log.warning("after")
    assert log_file.with_suffix(".log.1").read_text().endswith("room  before\n")
    assert log_file.read_text().endswith("room  after\n")
    assert log_file.read_text().count("\n") == 1


def test_a_folder_that_was_gone_for_a_while_is_written_to_again(
    log_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = logging.getLogger("room")
    log_file.unlink()
    log_file.parent.rename(log_file.parent.with_suffix(".away"))
    log.warning("lost")
    log.warning("lost")
    assert capsys.readouterr().err.count("cannot be written, lines are lost") == 1
    log_file.parent.mkdir()
    log.warning("kept")
    assert log_file.read_text().endswith("room  kept\n")


def test_lines_that_cannot_be_written_are_said_to_be_lost_once(
    log_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logging.getLogger("room")
    handler = log.root.handlers[0]

    def full() -> None:
        raise OSError(28, "No space left on device")

    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(handler, "flush", full)
            for _ in range(3):
                log.warning("lost")
        log.warning("kept")
        text = capsys.readouterr().err
        assert (
            text == f"the log file {log_file} cannot be written, lines are lost: [Errno 28] No space left on device\n"
        )
    assert "kept" in log_file.read_text()


def test_a_line_that_cannot_be_formatted_ends_nothing(log_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("room")
    (handler,) = [one for one in log.root.handlers if isinstance(one, WatchedFileHandler)]
    handler.handle(logging.LogRecord("room", logging.WARNING, "", 0, "%d entries", ("seven",), None))
    log.warning("kept")
    assert "Logging error" in capsys.readouterr().err
    assert log_file.read_text().endswith("room  kept\n")


def test_a_log_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"the log file .*/none/x\.log cannot be written"):
        start_logging(path=str(tmp_path / "none/x.log"))


def errors_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    caplog.clear()
    return found


def test_thousands_of_errors_of_a_ledger_are_one_line_and_then_a_count(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    errors = GroupedErrors(logging.getLogger("here"), clock)
    for entry_id in range(7_456):
        errors.say("ledger 1", f"entry {entry_id} cannot be read")
    errors.say("ledger 2", "entry 5 cannot be read")
    assert errors_of(caplog) == ["ledger 1: entry 0 cannot be read", "ledger 2: entry 5 cannot be read"]
    clock.advance(10)
    assert errors_of(caplog) == ["ledger 1: 7455 more like it; the last one: entry 7455 cannot be read"]
    errors.say("ledger 1", "entry 0 cannot be read")
    errors.say("ledger 2", "entry 6 cannot be read")
    assert errors_of(caplog) == ["ledger 2: entry 6 cannot be read"], "it was quiet, and the other one was not"
    clock.advance(10)
    assert errors_of(caplog) == ["ledger 1: 1 more like it; the last one: entry 0 cannot be read"]
    errors.say("ledger 1", "entry 1 cannot be read")
    errors.close()
    assert errors_of(caplog) == ["ledger 1: 1 more like it; the last one: entry 1 cannot be read"]
    clock.advance(100)
    assert errors_of(caplog) == []


def test_of_more_ledgers_than_there_is_room_for_the_others_are_counted_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    errors = GroupedErrors(logging.getLogger("here"), clock)
    for ledger_id in range(GROUPS_MAX + 5):
        errors.say(f"ledger {ledger_id}", "bad")
    assert errors_of(caplog)[-2:] == [f"ledger {GROUPS_MAX - 1}: bad", f"others: ledger {GROUPS_MAX}: bad"]
    clock.advance(10)
    assert errors_of(caplog) == [f"others: 4 more like it; the last one: ledger {GROUPS_MAX + 4}: bad"]


async def test_others_get_their_turn_while_much_is_told() -> None:
    metrics = Metrics()
    turns: list[int] = []

    def samples() -> Iterator[Sample]:
        for number in range(3 * SAMPLES_PER_TURN):
            yield Sample("n", number, (("of", str(len(turns))),))

    metrics.add(samples)
    asyncio.get_running_loop().call_soon(turns.append, 1)
    text = (await metrics.exposition_in_turns()).decode()
    assert f'n{{of="0"}} {SAMPLES_PER_TURN - 1}' in text
    assert f'n{{of="1"}} {SAMPLES_PER_TURN}.0' in text, "the other went on before this sample"
    assert text.count("\n") == 3 * SAMPLES_PER_TURN + 2
