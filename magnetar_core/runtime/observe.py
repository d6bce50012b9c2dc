"""Metrics and log lines.

Counters on the hot path are plain integers on their owner; they are read only on a scrape. A scrape
asks each registered source for its `Sample`s and `Summary`s and writes Prometheus text.

A log record may carry `fields` (a mapping, given as `extra={"fields": …}`): as JSON they are members of the line's
object, as text they follow the message as `name=value`.
"""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from time import gmtime
from typing import Final, NamedTuple

from prometheus_client.utils import floatToGoString

from magnetar_core.runtime.clock import Clock, Timer
from magnetar_core.runtime.data.visible import visible
from magnetar_core.runtime.files import FILE_MODE
from magnetar_core.runtime.types import ConfigurationError

Labels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """One number at this moment. Counters only grow; their names end in `_total`, or *kind* says what they are."""

    name: str
    value: float
    labels: Labels = ()
    help: str = ""
    kind: str = ""
    """`counter` or `gauge`; empty: as the name's ending says."""


class Summary(NamedTuple):
    """The distribution of one kind of operation: quantile → value, and number and sum of all operations since the
    start."""

    name: str
    quantiles: Mapping[float, float]
    total: float
    sum: float
    labels: Labels = ()
    help: str = ""


Source = Callable[[], "Iterable[Sample | Summary]"]

# Samples that are written before others get their turn on the loop; some 5 µs each.
SAMPLES_PER_TURN: Final = 2_000


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self._sources: list[Source] = []

    def add(self, source: Source) -> Callable[[], None]:
        """Ask *source* at each scrape. Returns a callable that removes it again."""
        self._sources.append(source)
        return lambda: self._sources.remove(source)

    def exposition(self) -> bytes:
        """The text that Prometheus reads.

        prometheus-client's own writer gives every counter a name that ends in `_total`; Apache's do not.
        """
        families = _Families()
        for sample in self._samples():
            families.add(sample)
        return families.text()

    async def exposition_in_turns(self) -> bytes:
        """The same text as `exposition`, with a turn for others on the loop after each SAMPLES_PER_TURN samples.

        Sources go on where they were, so they must not iterate over what others change.
        """
        families = _Families()
        for number, sample in enumerate(self._samples(), 1):
            families.add(sample)
            if not number % SAMPLES_PER_TURN:
                await asyncio.sleep(0)
        return families.text()

    def _samples(self) -> "Iterator[Sample | Summary]":
        for source in list(self._sources):
            yield from source()


class _Families:
    """Samples by their name, as Prometheus wants them to stand together."""

    def __init__(self) -> None:
        self._by_name: dict[str, tuple[str, str, list[str]]] = {}

    def add(self, sample: Sample | Summary) -> None:
        kind = _kind(sample)
        family = self._by_name.get(sample.name)
        if family is None:
            family = self._by_name[sample.name] = (kind, sample.help or sample.name, [])
        assert family[0] == kind, f"{sample.name} is a {family[0]} and a {kind}"
        family[2].extend(_lines(sample))

    def text(self) -> bytes:
        parts: list[str] = []
        for name, (kind, text, lines) in self._by_name.items():
            help_text = text.replace("\\", "\\\\").replace("\n", "\\n")
            parts += (f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n", *lines)
        return "".join(parts).encode()


def _kind(sample: Sample | Summary) -> str:
    if isinstance(sample, Summary):
        return "summary"
    return sample.kind or ("counter" if sample.name.endswith("_total") else "gauge")


def _lines(sample: Sample | Summary) -> Iterator[str]:
    if isinstance(sample, Sample):
        yield _line(sample.name, sample.labels, sample.value)
        return
    for quantile, value in sample.quantiles.items():
        yield _line(sample.name, (*sample.labels, ("quantile", str(quantile))), value)
    yield _line(f"{sample.name}_count", sample.labels, sample.total)
    yield _line(f"{sample.name}_sum", sample.labels, sample.sum)


def _line(name: str, labels: Labels, value: float) -> str:
    if labels:
        name += "{" + ",".join(f'{label}="{_escaped(text)}"' for label, text in sorted(labels)) + "}"
    return f"{name} {floatToGoString(value)}\n"  # type: ignore[no-untyped-call]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


# At most one line a second: a disk that hangs makes hundreds of operations slow at once.
_SLOW_LINE_S: Final = 1.0


class SlowOperations:
    """Logs operations that took long, with how long each of their stages took."""

    def __init__(self, log: logging.Logger, clock: Clock, threshold_ms: float) -> None:
        """*threshold_ms* 0: nothing is slow."""
        self._log = log
        self._clock = clock
        self.threshold_s = threshold_ms / 1000 if threshold_ms > 0 else float("inf")
        self._next_s = float("-inf")
        self._left_out = 0
        self.count = 0
        """Slow operations, those without a log line included."""

    def report(self, operation: str, total_s: float, stages_s: Mapping[str, float], **details: object) -> None:
        """*operation* took *total_s*, which is above the threshold; *stages_s*: stage → seconds, in order."""
        self.count += 1
        now = self._clock.monotonic()
        if now < self._next_s:
            self._left_out += 1
            return
        self._next_s = now + _SLOW_LINE_S
        fields: dict[str, object] = {"operation": operation, **details, "total_ms": round(total_s * 1000, 1)}
        fields |= {f"{stage}_ms": round(seconds * 1000, 1) for stage, seconds in stages_s.items()}
        if self._left_out:
            fields["left_out"] = self._left_out
            self._left_out = 0
        self._log.warning("slow operation", extra={"fields": fields})


# A log that is lost may have a million entries, and each read of one fails: so often a count is enough.
_GROUPED_S: Final = 10.0
# Groups that are told one by one; what else fails meanwhile is one group more. A name and two numbers each.
GROUPS_MAX: Final = 1_000
_OTHERS: Final = "others"


class GroupedErrors:
    """Errors that come by the thousand, such as one for each entry of a ledger whose log is lost: a line for the first
    of each group at once, then one line each ten seconds with how many more there were. Used on the loop."""

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._met: dict[str, tuple[int, str]] = {}
        """Group → how many were not told yet, and the last of them."""
        self._timer: Timer | None = None

    def say(self, group: str, text: str) -> None:
        """*text* happened to *group*."""
        if group not in self._met:
            if len(self._met) >= GROUPS_MAX:
                group, text = _OTHERS, f"{group}: {text}"
            if group not in self._met:
                self._log.error("%s: %s", group, text)
                self._met[group] = (0, "")
                if self._timer is None:
                    self._timer = self._clock.call_later(_GROUPED_S, self._tell)
                return
        self._met[group] = (self._met[group][0] + 1, text)

    def close(self) -> None:
        """Tell what was not told yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._tell()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        for group, (count, text) in self._met.items():
            if count:
                self._log.error("%s: %d more like it; the last one: %s", group, count, text)
        # A group that goes on gets no first line again; one that is quiet is forgotten.
        self._met = {group: (0, "") for group, (count, _) in self._met.items() if count}
        self._timer = self._clock.call_later(_GROUPED_S, self._tell) if self._met else None


class _LineFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z INFO  room  text`; one line, whatever names it has, and a traceback below it."""

    default_msec_format = "%s.%03dZ"
    default_time_format = "%Y-%m-%dT%H:%M:%S"

    converter = staticmethod(gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-5s %(name)s  %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", None)
        text = super().formatMessage(record)
        if fields:
            text += "  " + " ".join(f"{name}={_as_text(value)}" for name, value in fields.items())
        return visible(text)


class _JsonFormatter(logging.Formatter):
    """One JSON object a line, for log collectors."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time_ms": int(record.created * 1000),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if fields:
            # The line's own members take precedence.
            line = {**fields, **line}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _as_text(value: object) -> str:
    """*value* as one word; a text that is not one word is quoted as in JSON."""
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    text = str(value)
    return text if text and not set(text) & {" ", '"', "=", "\n"} else json.dumps(text, ensure_ascii=False)


class _LogFile(WatchedFileHandler):
    """While the file cannot be written (a full disk), lines are lost; that is said once on standard error."""

    _is_lost = False

    def _open(self) -> TextIOWrapper:
        """Not for everybody, as what is stored; the first file is made before the process has its umask."""
        fd = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        return os.fdopen(fd, "a", encoding=self.encoding, errors=self.errors)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.reopenIfNeeded()
            if self.stream is None:  # it could not be opened again the last time
                self.stream = self._open()
            self.stream.write(self.format(record) + self.terminator)
            self.flush()
            self._is_lost = False
        except OSError as error:
            if not self._is_lost:
                print(f"the log file {self.baseFilename} cannot be written, lines are lost: {error}", file=sys.stderr)
            self._is_lost = True
        except Exception:  # a line that cannot be formatted: said by logging, and nobody's end
            self.handleError(record)


def start_logging(level: str = "INFO", *, as_json: bool = False, path: str = "") -> None:
    """Send log lines to standard error, or to the file at *path*: several processes may share it, and when another
    program has moved it away (logrotate), the next line begins a new file.

    Raises ConfigurationError if the file cannot be written.
    """
    try:
        handler = _LogFile(path, encoding="utf-8") if path else logging.StreamHandler(sys.stderr)
    except OSError as error:
        raise ConfigurationError(f"the log file {path} cannot be written: {error}") from error
    handler.setFormatter(_JsonFormatter() if as_json else _LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
