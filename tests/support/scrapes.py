"""What Prometheus would have recorded of a cluster, as series for promtool: the recording goes on as it ended.

before ── ten minutes ──▶ after ── as long as is asked ──▶    counters go on at the pace between the two, gauges stay
"""

import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

BEFORE: Final = 20
"""Scrapes before the problem."""

_LINE: Final = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_TYPE: Final = re.compile(r"^# TYPE (\S+) counter$")


@dataclass(slots=True)
class Scrape:
    """What all servers of a cluster told at one moment."""

    values: dict[str, float] = field(default_factory=dict)
    """Series in Prometheus' notation → its value. A time is told as seconds since the scrape."""
    counters: set[str] = field(default_factory=set)
    """The series that only grow."""

    def add(self, job: str, instance: str, exposition: str | None) -> None:
        """None: the server did not answer."""
        own = f'job="{job}",instance="{instance}"'
        self.values[f"up{{{own}}}"] = exposition is not None
        counters = set()
        for line in (exposition or "").splitlines():
            if counter := _TYPE.match(line):
                counters.add(counter[1])
            if (sample := _LINE.match(line)) is None or math.isnan(value := float(sample[3])):
                continue
            name, labels, _ = sample.groups()
            series = f"{name}{{{own}{',' + labels if labels else ''}}}"
            # promtool's clock begins at 0.
            self.values[series] = value - time.time() if name.endswith("_timestamp_seconds") else value
            if name in counters:
                self.counters.add(series)


def promtool_test(
    rules: str,
    before: Scrape,
    after: Scrape,
    *,
    lasts_s: int,
    question: str,
    answer: float | None,
    of: str = "",
    gauges_go_on: bool = False,
    scrape_s: int = 30,
) -> dict[str, Any]:
    """A file for `promtool test rules`: *question* after *lasts_s* of the problem has *answer*; None: no sample.

    *of*: an expression; only the metrics that it names are given. *gauges_go_on*: they change as counters do.
    """
    count = lasts_s // scrape_s
    named = set(re.findall(r"[a-zA-Z_:][\w:]*", of))
    return {
        "rule_files": [rules],
        "evaluation_interval": f"{scrape_s}s",
        "tests": [
            {
                "interval": f"{scrape_s}s",
                "input_series": [
                    {"series": series, "values": values}
                    for series, values in _series(before, after, count, gauges_go_on=gauges_go_on)
                    if not of or series.partition("{")[0] in named
                ],
                "promql_expr_test": [
                    {
                        "expr": question,
                        "eval_time": f"{(BEFORE + count) * scrape_s}s",
                        "exp_samples": [] if answer is None else [{"labels": "{}", "value": answer}],
                    }
                ],
            }
        ],
    }


def _series(before: Scrape, after: Scrape, count: int, *, gauges_go_on: bool) -> Iterator[tuple[str, str]]:
    for series in dict.fromkeys((*before.values, *after.values)):
        was, is_now = before.values.get(series), after.values.get(series)
        goes_on = gauges_go_on or series in after.counters
        step = is_now - (was or 0) if goes_on and is_now is not None else 0
        yield series, f"{_run(was, 0, BEFORE - 1)} {_run(is_now, step, count)}"


def _run(first: float | None, step: float, more: int) -> str:
    """*first*, and *more* values behind it."""
    return (
        f"_x{more + 1}" if first is None else f"{_number(first)}{'-' if step < 0 else '+'}{_number(abs(step))}x{more}"
    )


def _number(value: float) -> str:
    return {math.inf: "Inf", -math.inf: "-Inf"}.get(value, f"{value:.9f}")
