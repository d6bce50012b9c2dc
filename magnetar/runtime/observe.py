"""Metrics and log lines.

Counters on the hot path are plain integers on their owner; they are read when somebody scrapes. A scrape
asks each registered source for its `Sample`s and writes Prometheus text through prometheus-client.
"""

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from time import gmtime
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class Sample(NamedTuple):
    """One number at this moment. Counters only grow; their names end in `_total`."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    help: str = ""


Source = Callable[[], Iterable[Sample]]


class Metrics:
    """Everything that one process can tell about itself."""

    def __init__(self) -> None:
        self._sources: list[Source] = []
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def add(self, source: Source) -> Callable[[], None]:
        """Ask *source* at each scrape; returns a call that takes it out again."""
        self._sources.append(source)
        return lambda: self._sources.remove(source)

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for source in list(self._sources):
            for sample in source():
                names = [name for name, _ in sample.labels]
                family = families.get(sample.name)
                if family is None:
                    kind = CounterMetricFamily if sample.name.endswith("_total") else GaugeMetricFamily
                    family = families[sample.name] = kind(sample.name, sample.help or sample.name, labels=names)
                assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
                family.add_metric([value for _, value in sample.labels], sample.value)
        yield from families.values()

    def exposition(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)


class _LineFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z INFO  room  text`; one line, a traceback below it."""

    default_msec_format = "%s.%03dZ"
    default_time_format = "%Y-%m-%dT%H:%M:%S"

    converter = staticmethod(gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-5s %(name)s  %(message)s")


class _JsonFormatter(logging.Formatter):
    """One JSON object a line, for log collectors."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time_ms": int(record.created * 1000),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def start_logging(level: str = "INFO", *, as_json: bool = False) -> None:
    """Send log lines to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if as_json else _LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
