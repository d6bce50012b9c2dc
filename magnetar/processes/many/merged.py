"""One answer out of the answers of several processes: metrics and JSON. No IO.

Rules for metrics (Prometheus text):

1. A family has one HELP and one TYPE, those of the first process that reports it, and its lines stand together.
2. A line that only one process reports stays as it is, with Apache's labels. Where several report the same name and
   labels, each of their lines gets the label `process`, the number of the process in the service.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

LABEL: Final = "process"


def merged_metrics(expositions: Mapping[int, str]) -> str:
    """The metrics of all processes; *expositions*: number of a process → its text."""
    heads: dict[str, list[str]] = {}
    lines: dict[str, list[tuple[int, str, str]]] = {}
    counts: Counter[str] = Counter()
    for number, text in expositions.items():
        family = ""
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                family = line.split(" ", 3)[2]
                head = heads.setdefault(family, [])
                lines.setdefault(family, [])
                if not any(known.startswith(line[: len("# HELP ")]) for known in head):
                    head.append(line)
            elif line and not line.startswith("#"):
                series, value = _split(line)
                name = series.partition("{")[0]
                if not family or not name.startswith(family):  # a line without a head of its own
                    family = name
                    heads.setdefault(family, [])
                lines.setdefault(family, []).append((number, series, value))
                counts[series] += 1
    text_lines: list[str] = []
    for family, head in heads.items():
        text_lines += head
        text_lines += (
            f"{_labelled(series, number) if counts[series] > 1 else series} {value}"
            for number, series, value in lines.get(family, ())
        )
    return "".join(f"{line}\n" for line in text_lines)


def merged_json(values: Sequence[Any]) -> Any:
    """Objects are joined member by member, lists one behind the other; of anything else the first stays."""
    assert values, "there is nothing to merge"
    if all(isinstance(value, dict) for value in values):
        names = dict.fromkeys(name for value in values for name in value)
        return {name: merged_json([value[name] for value in values if name in value]) for name in names}
    if all(isinstance(value, list) for value in values):
        return [member for value in values for member in value]
    return values[0]


def _split(line: str) -> tuple[str, str]:
    """A line as name with labels, and what follows. Values of labels may hold blanks and braces."""
    end = line.find("{")
    if end < 0 or " " in line[:end]:
        name, _, value = line.partition(" ")
        return name, value
    quoted = False
    at = end
    while at < len(line):
        letter = line[at]
        if letter == "\\" and quoted:
            at += 1
        elif letter == '"':
            quoted = not quoted
        elif letter == "}" and not quoted:
            break
        at += 1
    return line[: at + 1], line[at + 1 :].strip()


def _labelled(series: str, number: int) -> str:
    name, brace, labels = series.partition("{")
    rest = labels[:-1] if brace else ""
    return f'{name}{{{rest}{"," if rest else ""}{LABEL}="{number}"}}'


def joined_addresses(urls: Iterable[str]) -> str:
    """`pulsar://host:6650` and `pulsar://host:6651` as one service URL."""
    first, *rest = urls
    return ",".join([first, *(url.partition("://")[2] for url in rest)])
