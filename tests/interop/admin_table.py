"""Judges what two brokers answered to a command of `pulsar-admin`, and shows it as a page for people."""

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tests.interop.admin_tool import HUNG, Said, comparable


class Verdict(enum.Enum):
    """How our answer compares with Apache's. The later one counts where a command has lines of several."""

    SAME = "as Apache"
    REFUSED = "refused by name"
    DIFFERENT = "different"
    BROKEN = "broken"


class Result(NamedTuple):
    """One line, and what was said to it."""

    line: str
    apache: Said
    ours: Said
    verdict: Verdict


_REFUSAL: Final = re.compile(r"is not supported by this broker|(is|are) not served by this broker|is no Java process")
_WORD: Final = re.compile(r"[A-Za-z]{4,}|\b[45]\d\d\b")
_REASON_CHARACTERS: Final = 600
"""Of Apache's text: behind it stands a stack trace at most."""


def verdict(line: str, apache: Said, ours: Said) -> Verdict:
    """Refusals have to fail on both sides with a text that speaks of the same thing; all else has to be equal."""
    if ours.exit == HUNG or "Traceback" in ours.text or "unexpected error occurred in the server" in ours.text:
        return Verdict.BROKEN
    if ours.exit == apache.exit and comparable(ours) == comparable(apache):
        return Verdict.SAME
    if ours.exit != 0 and refuses(ours.text):
        return Verdict.REFUSED
    if ours.exit != 0 and apache.exit != 0 and names_the_thing(line, apache.text, ours.text):
        return Verdict.SAME
    return Verdict.DIFFERENT


def refuses(text: str) -> bool:
    """Whether a broker says in *text* that it does not have what was asked for."""
    return _REFUSAL.search(text) is not None


def names_the_thing(line: str, apache: str, ours: str) -> bool:
    """Whether a refusal has a word of the command's arguments, or one of Apache's reason."""
    wanted = _WORD.findall(line.partition(" ")[2]) + _WORD.findall(apache[:_REASON_CHARACTERS])
    said = {word.lower() for word in _WORD.findall(ours)} - {"reason", "http"}
    return any(word.lower() in said for word in wanted)


def page(
    answers: Mapping[str, Sequence[Result]],
    different: Mapping[str, str],
    refused: Mapping[str, str],
    not_run: Mapping[str, str],
    version: str,
) -> str:
    """docs/pulsar-admin.md."""
    order = list(Verdict)
    lines = [
        "# pulsar-admin",
        "",
        f"Each command of Apache's `pulsar-admin` {version}, run against our broker and against Apache's in the same",
        "world: a tenant, namespaces, topics with messages, partitions, subscriptions and schemas. Exit codes and",
        "output are compared; ids, times, sizes, rates and addresses are left out. A command has several lines, such",
        "as reading before and after it was set; it counts as its worst one. Where both brokers refuse, the texts need",
        "not be the same. `make interop` writes this page.",
        "",
        "| group | commands | as Apache | refused by name | different |",
        "|---|---|---|---|---|",
    ]
    total = [0, 0, 0, 0]
    for group, results in answers.items():
        worst: dict[str, Verdict] = {}
        for result in results:
            command = result.line.split()[0]
            worst[command] = max(worst.get(command, Verdict.SAME), result.verdict, key=order.index)
        found = list(worst.values())
        counts = [
            len(found),
            found.count(Verdict.SAME),
            found.count(Verdict.REFUSED),
            found.count(Verdict.DIFFERENT) + found.count(Verdict.BROKEN),
        ]
        total = [one + more for one, more in zip(total, counts, strict=True)]
        lines.append(f"| {group} | " + " | ".join(map(str, counts)) + " |")
    run = sum(map(len, answers.values()))
    lines += [f"| **all, {run} lines** | " + " | ".join(map(str, total)) + " |", ""]
    for title, listed in (("Refused by name", refused), ("Different", different), ("Not run", not_run)):
        lines += [f"## {title}", "", *(f"- `{_shown(name)}`: {reason}" for name, reason in listed.items()), ""]
    return "\n".join(lines)


def _shown(name: str) -> str:
    return name.replace("{files}/", "").replace("{", "").replace("}", "")
