"""The parts of bench/apache that decide: reading what the tools print, medians, tables."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.apache.bookie import FIXED_PER_S, Cell, cells, record
from bench.apache.document import (
    BEGIN,
    DOCS,
    END,
    TITLES,
    costs,
    draw_curves,
    machines,
    rows_in,
    rows_page,
    runs_of,
    with_table,
    write,
)
from bench.apache.headlines import HEADLINES, shown, table
from bench.apache.outputs import (
    Latency,
    Load,
    NoResult,
    parse_adds,
    parse_consume,
    parse_our_adds,
    parse_produce,
    warm_latency,
)
from bench.apache.profile import report
from bench.apache.quiet import Quiet, Stolen, stolen
from bench.apache.spark import topic_of
from bench.apache.spark_jobs import summed
from bench.apache.spark_processes import Jvm
from bench.apache.spark_reads import Rates, add_ratios
from bench.apache.spark_ways import BROKER, CEILING, SOURCE, VALUES
from bench.apache.table import (
    Row,
    Table,
    cell,
    figure,
    goal_text,
    markdown,
    merged,
    merged_rows,
    one_line,
    percentile,
    row_from,
    row_to,
    spread,
)
from bench.broker_load import Publish
from bench.many_takeovers import Cost, Gaps, cost
from bench.process_facts import CpuSamples
from bench.spark_topics import DAY_BEGINS_MS, DAY_MS, IN_FLIGHT_MS
from broker.wire.frames import parse_send
from managed_ledger.messages import messages_of

GENERATOR = """\
2026-11-21T16:16:59,069+0000 [main-EventThread] INFO  LedgerCreateOp - Ensemble: [127.0.0.1:1] for ledger: 7
2026-11-21T16:17:04,122+0000 [Thread-3] INFO  BenchThroughputLatency - Sent: 93852
2026-11-21T16:17:04,545+0000 [main] INFO  BenchThroughputLatency - 4 completions in 2000 milliseconds: 2 ops/sec
2026-11-21T16:17:04,640+0000 [main] INFO  BenchThroughputLatency - 99th percentile latency: 781.861115
"""
PRODUCE = """\
2026-11-21T16:33:04,000+0000 [exec-1-1] INFO  PerformanceProducer - Created 1 producers
2026-11-21T16:33:09,000+0000 [exec-1-1] INFO  PerformanceProducer - ------------- DONE (reached the maximum duration: [5 seconds] of production) --------------
2026-11-21T16:33:12,851+0000 [shutdown] INFO  PerformanceProducer - Aggregated throughput stats --- 235955 records sent --- 23534.187 msg/s --- 183.861 Mbit/s 
2026-11-21T16:33:13,018+0000 [shutdown] INFO  PerformanceProducer - Aggregated latency stats --- Latency: mean: 1011.685 ms - med: 972.815 - 95pct: 1671.919 - 99pct: 1765.351 - 99.9pct: 1785.287 - 99.99pct: 1785.311 - 99.999pct: 1785.311 - Max: 1785.703
"""  # noqa: E501, W291
CONSUME = """\
2026-11-21T16:33:32,000+0000 [main] INFO  PerformanceConsumer - Start receiving from 1 consumers per subscription on 1 topics
2026-11-21T16:33:34,500+0000 [listener] INFO  PerformanceConsumer - ------------------- DONE -----------------------
2026-11-21T16:33:34,263+0000 [shutdown] INFO  PerformanceConsumer - Aggregated throughput stats --- 50000 records received --- 29072.243 msg/s --- 227.127 Mbit/s --- AckRate: 29071.6  msg/s --- ack failed 0 msg
2026-11-21T16:33:34,351+0000 [shutdown] INFO  PerformanceConsumer - Aggregated latency stats --- Latency: mean:  3.324 ms - med:  3 - 95pct:  4 - 99pct:  8 - 99.9pct: 12 - 99.99pct: 13 - 99.999pct: 13 - Max: 14
"""  # noqa: E501


def test_the_load_generators_rate_and_latencies_are_found() -> None:
    lines = ["1000000\t1ms\n", "3000000\t3ms\n", "2000000\t2ms\n", "40000000\t40ms\n", "0\t0ms\n"]
    load = parse_adds(GENERATOR, lines)
    assert (load.done, load.per_s) == (4, 2.0)
    assert load.latency == Latency(3.0, 40.0, 40.0)


def test_our_load_generators_line_is_the_last() -> None:
    line = '{"adds": 30, "warm": 7, "seconds": 2.0, "p50": 1.5, "p99": 4.0, "p999": 5.0}'
    assert parse_our_adds(f"connected\n{line}\n") == Load(30, 15.0, Latency(1.5, 4.0, 5.0), 7)
    for text in ("", "Traceback", "{}", "[]"):
        with pytest.raises(NoResult, match="no figures"):
            parse_our_adds(text)


def test_a_load_generator_without_a_rate_says_why() -> None:
    text = "starting\norg.apache.bookkeeper.client.BKException$BKNotEnoughBookiesException: Not enough bookies\nbye\n"
    with pytest.raises(NoResult, match="NotEnoughBookies"):
        parse_adds(text, [])
    with pytest.raises(NoResult, match="it said nothing"):
        parse_adds("", [])
    with pytest.raises(NoResult, match="no latencies"):
        parse_adds(GENERATOR, [])


def test_pulsar_perfs_rate_is_that_between_its_first_send_and_its_last() -> None:
    load = parse_produce(PRODUCE)
    assert load.done == 235_955
    assert load.per_s == pytest.approx(235_955 / 5)
    assert load.latency == Latency(972.815, 1765.351, 1785.287)


def test_pulsar_perfs_own_rate_is_taken_where_its_log_has_no_times() -> None:
    without = "\n".join(line for line in PRODUCE.splitlines() if "DONE" not in line)
    assert parse_produce(without).per_s == pytest.approx(23_534.187)


def test_what_a_consumer_received_is_found() -> None:
    load = parse_consume(CONSUME)
    assert (load.done, load.per_s) == (50_000, 20_000.0)
    assert load.latency == Latency(3.0, 8.0, 12.0)


def test_latencies_at_a_fixed_rate_are_those_of_the_warm_intervals() -> None:
    line = "{} [main] INFO  PerformanceProducer - Throughput produced:   47293 msg ---   4729.2 msg/s ---     36.9 Mbit/s  --- failure      0.0 msg/s --- Latency: mean:   3.238 ms - med:   {} - 95pct:   7.704 - 99pct:  {} - 99.9pct:  {} - 99.99pct:  73.420 - Max:  73.434\n"  # noqa: E501
    other = "{} [main] INFO  PerformanceConsumer - Throughput received:   39475 msg --- 3947.458  msg/s --- 30.840 Mbit/s  --- Latency: mean: 13.865 ms - med: {} - 95pct: 139 - 99pct: {} - 99.9pct: {} - 99.99pct: 229 - Max: 229\n"  # noqa: E501
    cold = line.format("2026-11-25T15:11:55,079+0000", 99, 990, 999)
    assert warm_latency(
        cold + line.format("2026-11-25T15:12:05,096+0000", 1.5, 5, 8) + line.format("x", 1.0, 7, 9)
    ) == Latency(1.25, 6.0, 8.5)
    assert warm_latency(cold + other.format("x", 2, 11, 50) + PRODUCE) == Latency(2.0, 11.0, 50.0)
    with pytest.raises(NoResult, match="intervals"):
        warm_latency(cold + PRODUCE)


def test_pulsar_perf_without_figures_says_why() -> None:
    with pytest.raises(NoResult, match="TimeoutException"):
        parse_consume("hello\njava.util.concurrent.TimeoutException: too slow\n")
    with pytest.raises(NoResult, match="no figures"):
        parse_produce(PRODUCE.replace("235955", "0"))


def test_percentiles_are_taken_from_the_ordered_values() -> None:
    values = [float(number) for number in range(1, 101)]
    assert percentile(values, 0.5) == 51
    assert percentile(values, 0.999) == 100
    assert percentile([7.0], 0.99) == 7
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(26_431.7, "26,432"), (100.0, "100"),
     (14.68, "14.7"), (1.456, "1.46"), (0.5, "0.50"), (0.0123, "0.012"), (0, "0.00")],
)  # fmt: skip
def test_figures_show_what_matters(value: float, shown: str) -> None:
    assert figure(value) == shown


def test_a_cell_shows_the_median_and_the_spread() -> None:
    assert spread([3.0, 1.0, 2.0]) == "2.00 [1.00..3.00]"
    assert spread([1500.0]) == "1,500"


def test_the_ratio_is_ours_divided_by_apaches() -> None:
    row = Row("adds", "adds/s", {"apache": [10.0, 20.0, 30.0], "ours": [30.0]}, goal=">= 1.5")
    assert row.ratio == 1.5
    assert row.goal_met is True
    assert goal_text(row) == "≥ 1.5: met"
    row.values["ours"] = [29.0]
    assert goal_text(row) == "≥ 1.5: **not met**"


def test_a_goal_with_a_unit_is_for_our_figure_itself() -> None:
    row = Row("start", "s", {"ours": [0.9, 1.2, 0.8]}, goal="<= 1 s")
    assert row.ratio is None
    assert row.goal_met is True
    row.values["ours"] = [1.1]
    assert row.goal_met is False


def test_without_numbers_there_is_no_verdict() -> None:
    row = Row("p99", "ms", {"ours": [1.0]}, {"apache": "it did not start"}, goal="<= 0.5")
    assert row.goal_met is None
    assert goal_text(row) == "≤ 0.5"
    assert cell(row, "apache") == "failed: it did not start"
    assert Row("idle", "%", {"apache": [0.0], "ours": [1.0]}).ratio is None


def test_a_run_that_failed_shows_why_beside_those_that_did_not() -> None:
    table = Table()
    table.add("adds", "adds/s", "ours", 5.0)
    table.fail("adds", "adds/s", "ours", "the disk\nis full | really")
    (row,) = table.rows
    assert cell(row, "ours") == "5.00 (one failed: the disk is full / really)"
    assert len(one_line("x" * 1000)) < 220


def test_rows_keep_the_order_and_goal_in_which_they_first_came() -> None:
    table = Table()
    table.row("b", "s", goal="<= 1 s")
    table.row("a", "s")
    table.add("a", "s", "ours", 1.0)
    table.add("b", "s", "apache", 2.0, note="not synced")
    assert [row.what for row in table.rows] == ["b", "a"]
    assert table.rows[0].goal == "<= 1 s"
    text = markdown(table.rows)
    assert text.splitlines()[0].endswith("| goal | ratio |")
    assert text.splitlines()[2] == "| b (not synced) | s | 2.00 | – | ≤ 1 s | – |"


def test_rows_come_back_from_json_and_other_groups_stay() -> None:
    row = Row("adds", "adds/s", {"ours": [1.0, 2.0]}, {"apache": "gone"}, ">= 1.5", "limit")
    assert row_from(json.loads(json.dumps(row_to(row)))) == row
    assert merged({"perf": 1, "disk": 2}, {"disk": 3}) == {"perf": 1, "disk": 3}


def test_every_size_protocol_and_quorum_has_a_cell_and_64_kib_only_at_saturation() -> None:
    for size in (100, 1024):
        assert [each.client for each in cells(size)] == ["Apache's"] * 8 + ["Magnetar's"] * 4
    assert {each.fixed for each in cells(65536)} == {False}
    assert Cell(100, "1/1/1", "v3", True).throttle == FIXED_PER_S


def test_a_run_that_meets_the_generators_own_limit_is_marked() -> None:
    table = Table()
    cell_of = Cell(65536, "1/1/1", "v2", False)
    record(table, "ours", cell_of, Load(9_500, cell_of.throttle * 0.99, Latency(1, 2, 3)), 1.0)
    first, *_, cpu = table.rows
    assert "limit" in first.note
    assert cpu.values["ours"] == [pytest.approx(100.0)]


MACHINE = {"cores": 2, "memory_mb": 24_000, "system": "Linux", "versions": {"Pulsar": "4.0.8"}}


def result(date: str, *rows: Row, **more: Any) -> dict[str, Any]:
    """Of a group, as `bench.apache` keeps it."""
    return {
        "rows": list(map(row_to, rows)), "notes": [], "failed": "", "rounds": 1, "seconds": 2, "took_s": 90,
        "date": date, "command": "python -m bench.apache disk --rounds 1", "machine": MACHINE, **more,
    }  # fmt: skip


def pages(docs: Path, **results: dict[str, Any]) -> tuple[str, str]:
    """The page and the page of all rows, after a run."""
    page = docs / "BENCHMARKS.md"
    if not page.exists():
        page.write_text(f"# Benchmarks\n\n{BEGIN}\n{END}\n\nbehind\n")
    write(results, docs)
    return page.read_text(), (docs / "benchmarks" / "rows.md").read_text()


def test_the_pages_name_machine_command_and_what_is_missing(tmp_path: Path) -> None:
    disk = Row("disk", "MB/s", {"ours": [100.0]})
    page, rows = pages(tmp_path, disk=result("2026-01-02", disk, notes=["one line", "two\nlines"], failed="it broke"))
    assert "- disk: 2026-01-02; 2 cores, 24,000 MB, Linux; Pulsar 4.0.8." in page
    assert page.endswith("\nbehind\n")
    assert "`python -m bench.apache disk --rounds 1`, 2026-01-02, 1.5 minutes." in rows
    assert "Not run yet: `python -m bench.apache bookie`." in rows
    assert "**The group failed**: it broke" in rows
    assert "```\ntwo\nlines\n```" in rows
    assert "- one line" in rows
    assert "The machine was" not in rows
    quiet = {"additions_s": [0.9, 1.6], "stolen": 0.002}
    _, rows = pages(tmp_path, disk=result("2026-01-02", disk, quiet=quiet))
    assert "1.5 minutes. The machine was not quiet: 10 million additions in Python took 0.90 to 1.60 s" in rows
    assert "one line" not in rows, "the same command of the same day takes the place of the other"


def test_a_page_without_the_place_for_the_table_is_refused() -> None:
    assert with_table(f"a{BEGIN}old{END}b", "new") == f"a{BEGIN}\n\nnew\n\n{END}b"
    for page in ("", BEGIN, END):
        with pytest.raises(ValueError, match="the page of benchmarks has no"):
            with_table(page, "new")


def test_the_ratios_of_the_run_before_stand_beside_those_of_the_newest(tmp_path: Path) -> None:
    pages(
        tmp_path,
        disk=result(
            "2026-01-02",
            Row("adds", "/s", {"apache": [10.0], "ours": [16.0]}, goal=">= 1.5", note="a limit"),
            Row("adds", "ms", {"apache": [10.0], "ours": [16.0]}, goal="<= 0.5"),
            Row("memory", "MB", {"ours": [90.0]}),
            Row("holds 5,000,153 entries of 10,000", "MB", {"ours": [60.0]}),
        ),
        perf=result("2026-01-02", Row("what", "MB/s", {"ours": [222.0]})),
    )
    page, rows = pages(
        tmp_path,
        disk=result(
            "2026-03-04",
            Row("adds", "/s", {"apache": [10.0], "ours": [12.0]}, goal=">= 1.5"),
            Row("adds", "ms", {"apache": [10.0], "ours": [4.0]}, goal="<= 0.5"),
            Row("memory", "MB", {"ours": [80.0]}),
            Row("new", "MB", {"ours": [70.0]}),
            Row("holds 5,001,404 entries of 10,000", "MB", {"ours": [65.0]}),
        ),
    )
    assert "| goal | ratio | earlier |" in rows
    assert "| adds | /s | 10.0 | 12.0 | ≥ 1.5: **not met** | 1.20 | 1.60, met |" in rows
    assert "| adds | ms | 10.0 | 4.00 | ≤ 0.5: met | 0.40 | 1.60, not met |" in rows
    assert "| memory | MB | – | 80.0 |  | – | 90.0 |" in rows
    assert "| new | MB | – | 70.0 |  | – | – |" in rows
    assert "| holds 5,001,404 entries of 10,000 | MB | – | 65.0 |  | – | 60.0 |" in rows
    assert "2026-03-04; the run before 2026-01-02, 1.5 minutes." in rows
    assert "| what | MB/s | – | 222 |  | – |" in rows, "a group that was not run again stays"
    assert "- disk: 2026-03-04; 2 cores" in page
    assert "- perf: 2026-01-02; 2 cores" in page
    third = result("2026-05-06", Row("adds", "/s", {"ours": [1.0]}))
    pages(tmp_path, disk=third)
    kept = json.loads((tmp_path / "benchmarks" / "disk.json").read_text())
    assert [run["date"] for run in kept] == ["2026-03-04", "2026-05-06"]


def test_a_headline_shows_the_ratio_and_what_a_goal_means_for_it() -> None:
    start = Row(HEADLINES[0].what + " (not synced)", "s", {"apache": [20.0], "ours": [0.5]}, goal="<= 1 s")
    spark = next(headline for headline in HEADLINES if headline.group == "spark")
    through = Row(spark.what, "×", {"apache": [4.0], "ours": [3.0]}, goal=">= 5 ×")
    lines = shown({"start": [start, Row("other", "s", {"ours": [1.0]})], "spark": [through]})
    assert [(line.headline.label, line.ratio, line.goal) for line in lines] == [
        (HEADLINES[0].label, 0.025, 0.05), (spark.label, 3.0, 5.0),
    ]  # fmt: skip
    text = table(lines).splitlines()
    assert f"| {HEADLINES[0].label} | s | 20.0 | 0.50 | 0.025 | ≤ 0.05: met |" in text
    assert f"| {spark.label} | ratio | 4.00 | 3.00 | 3.00 | ≥ 5.00: **not met** |" in text


def test_the_page_in_the_repository_is_what_its_data_say() -> None:
    """Each headline has its row, and both pages were made from the files beside them."""
    groups = {name: runs for name in TITLES if (runs := runs_of(DOCS / "benchmarks" / f"{name}.json"))}
    lines = shown({name: rows_in(runs[-1]) for name, runs in groups.items()})
    assert len(lines) == len(HEADLINES)
    page = (DOCS / "BENCHMARKS.md").read_text()
    assert with_table(page, f"{table(lines)}\n\n{machines(groups)}") == page
    assert rows_page(groups) == (DOCS / "benchmarks" / "rows.md").read_text()
    guide = (DOCS / "spark.md").read_text()
    assert with_table(guide, costs(groups["spark-costs"][-1])) == guide


def test_the_time_of_a_job_counts_processes_that_have_ended() -> None:
    before = Jvm(os.getpid()).job_cpu_s
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    assert Jvm(os.getpid()).job_cpu_s - before >= 0.25


def test_what_questions_cost_is_a_line_a_question_and_a_column_a_way() -> None:
    rows = [Row("count: ours", "s", {"ours": [1.0, 3.0, 2.0]}), Row("count: Parquet", "s", {"ours": [0.5]}),
            Row("full rows: ours", "s", {"ours": [4.0]})]  # fmt: skip
    run = {"date": "2026-01-02", "machine": "2 cores", "quiet": "It was quiet.", "notes": ["one", "load 1.0"],
           "rows": list(map(row_to, rows))}  # fmt: skip
    assert costs(run).splitlines() == [
        "| seconds of processor time, a million rows | ours | Parquet |",
        "|---|---:|---:|",
        "| count | 2.00 [1.00..3.00] | 0.50 |",
        "| full rows | 4.00 | – |",
        "",
        "2026-01-02; 2 cores. It was quiet. load 1.0.",
    ]


def test_a_machine_is_quiet_while_the_same_work_takes_the_same_time_and_nothing_is_stolen() -> None:
    now = stolen("cpu  100 0 50 700 20 0 5 25 40 0\ncpu0 1 2 3\n")
    assert now == Stolen(25, 900)  # what guests of this machine took is part of the first two
    since = Stolen(21, 100)
    quiet = Quiet.of([0.50, 0.55], [0.52, 0.6], since, now)
    assert quiet == Quiet([0.50, 0.60], 0.005)
    assert quiet.is_quiet
    assert quiet.told == (
        "The machine was quiet: 10 million additions in Python took 0.50 to 0.60 s before and after, 0.5 % of the time "
        "went to others on the host."
    )
    assert not Quiet.of([0.50, 0.55], [0.52, 0.7], since, now).is_quiet
    assert not Quiet.of([0.5], [0.5], Stolen(0, 100), now).is_quiet


def test_a_profile_leaves_out_what_everything_is_called_from() -> None:
    found = {
        "samples": 100,
        "own": [["a.py f", 60], ["b.py g", 40]],
        "with_callees": [["main", 100], ["a.py f", 60]],
        "threads_s": {"MainThread": 3.0, "idle": 0.0},
    }
    text = report("bookie", found)
    assert " 60.0 %  a.py f" in text
    assert "main" not in text
    assert "MainThread 3.0" in text
    assert "idle" not in text


def test_a_run_of_one_part_replaces_its_rows_and_keeps_the_others() -> None:
    kept = [row_to(Row("a", "s", {"ours": [1.0]})), row_to(Row("b", "s", {"ours": [2.0]}))]
    found = [row_to(Row("b", "s", {"ours": [3.0]})), row_to(Row("b", "MB", {"ours": [4.0]}))]
    rows = [row_from(raw) for raw in merged_rows(kept, found)]
    assert [(row.what, row.unit, row.values["ours"]) for row in rows] == [
        ("a", "s", [1.0]), ("b", "s", [3.0]), ("b", "MB", [4.0]),
    ]  # fmt: skip


def test_topics_for_spark_spread_over_a_day_of_which_an_hour_has_its_share() -> None:
    topic = topic_of("t", 100, 2_400_000, 4)
    assert (topic.count, topic.entries) == (2_400_000, 2_400)
    assert topic.hour_count == 100_000
    times = [topic.published_ms(number) for number in range(topic.entries)]
    assert times[0] == DAY_BEGINS_MS
    assert max(times) < DAY_BEGINS_MS + DAY_MS
    assert topic_of("t", 100, 1, 16).count == 24_000 * 16, "every partition has messages of each hour"


def test_what_is_under_way_in_a_partition_was_published_within_half_a_minute_or_is_one_entry() -> None:
    """A ledger is closed by the clock of the last of them, which the search for an hour believes."""
    few, many = topic_of("t", 1_000, 600_000, 16), topic_of("t", 100, 100_000_000, 4, packed=True)
    assert few.in_flight_max == 1
    assert many.in_flight_max == 5
    for topic in (few, many):
        apart_ms = topic.published_ms(topic.partitions) - topic.published_ms(0)
        assert topic.in_flight_max == 1 or topic.in_flight_max * apart_ms <= IN_FLIGHT_MS


def test_a_ratio_is_made_of_figures_of_one_round_and_side() -> None:
    topic, table = topic_of("t", 1_000, 96_000, 4), Table()
    rates: Rates = {
        ("value only", SOURCE, "ours"): 60.0,
        ("value only", SOURCE, "apache"): 30.0,
        ("value only", CEILING, "ours"): 100.0,
        ("value only", BROKER, "ours"): 10.0,
    }
    add_ratios(table, topic, VALUES, rates)
    found = {row.what.partition(" ÷ ")[2]: row for row in table.rows}
    assert found[CEILING].values == {"apache": [0.3], "ours": [0.6]}
    assert found[CEILING].goal_met
    assert found[BROKER].values == {"ours": [6.0]}, "nothing was read through Apache's broker"
    assert found[BROKER].goal_met


def test_what_tasks_tell_is_summed() -> None:
    told = [{"topic": "a", "rows": 2, "built_s": 0.5}, {"topic": "b", "rows": 3, "built_s": 0.25}]
    assert summed(told) == {"rows": 5, "built_s": 0.75}


def test_a_point_of_a_curve_keeps_its_place_in_the_file_of_results(tmp_path: Path) -> None:
    table = Table()
    for at in (1, 100):
        table.add(f"adds, {at} ledgers", "adds/s", "ours", 1000.0 / at, curve="adds, by ledgers", at=at)
    rows = [row_from(json.loads(json.dumps(row_to(row)))) for row in table.rows]
    assert [(row.curve, row.at) for row in rows] == [("adds, by ledgers", 1), ("adds, by ledgers", 100)]
    draw_curves(rows, "growth", tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_what_the_load_sends_is_what_the_broker_reads() -> None:
    for batch, size in ((1, 100), (1000, 10)):
        options = argparse.Namespace(count=4000, batch=batch, size=size, topics=300, connections=1, window=1)
        frame = memoryview(Publish(options).frame(299))
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        send = parse_send(frame[4:])
        assert send is not None
        assert (send.producer_id, send.sequence_id, send.num_messages) == (299, 0, batch)
        _, messages = messages_of(send.entry)
        assert [bytes(message.payload) for message in messages] == [bytes(size)] * batch


def test_processor_time_is_read_between_two_samples_and_ends_with_its_process() -> None:
    samples = CpuSamples(["a", "b"])
    samples.add(10.0, {"a": 1.0, "b": 5.0})
    samples.add(12.0, {"a": 3.0, "b": 6.0})
    samples.add(14.0, {"a": 3.5})
    assert samples.used_s("a", 10.0, 14.0) == 2.5
    assert samples.used_s("a", 11.0, 13.0) == 1.25
    assert samples.used_s("a", 0.0, 99.0) == 2.5
    assert samples.used_s("b", 11.0, 14.0) == 0.5


def test_a_takeover_costs_what_was_used_until_the_last_topic_was_back() -> None:
    samples = CpuSamples(["broker"])
    for moment_s, used_s in ((0.0, 0.0), (4.0, 0.4), (6.0, 2.4), (9.0, 9.0)):
        samples.add(moment_s, {"broker": used_s})
    gaps = Gaps([1.0, 2.0], topics=10, p99_ms=1.0)
    found = cost(samples, "broker", 4.0, 4.0, gaps)
    assert found == Cost("broker", 1000.0, found.load_ms)
    assert found.load_ms == pytest.approx(100.0)
