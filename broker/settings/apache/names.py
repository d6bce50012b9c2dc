"""Settings of Apache's brokers that this one does not have. No IO but that of an import.

    refused.conf           features; refused when they are switched on, since somebody relies on them
    shipped.conf           accepted at the values that Apache ships
    without_effect.conf    accepted with any value of their kind: they tune a Java process
    lines/4.0.conf, …      other defaults, by the name of a line (`apacheLine`)

So Apache's `broker.conf` can be used as it is, and nothing that it asks for is left out without a word.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from magnetar_core.runtime.apache_lists import changed, read_kinds, read_list

REFUSED: Final = read_list(__package__, "refused.conf")
SHIPPED: Final = read_list(__package__, "shipped.conf")
WITHOUT_EFFECT: Final = read_kinds(__package__, "without_effect.conf")

DEFAULTS_OF_LINES: Final[Mapping[str, Mapping[str, str]]] = {
    line: {name: listed.values[0] for name, listed in read_list(__package__, f"lines/{line}.conf").items()}
    for line in ("4.0", "4.2", "5.0")
}
"""What the lines of Apache's brokers have where nothing is set, where our own defaults are others."""

KINDS: Final[Mapping[str, str]] = {**dict.fromkeys((*REFUSED, *SHIPPED), "text"), **WITHOUT_EFFECT}
"""All of these, with the kind of their values; those of the first two are compared with the lists."""

NAMES: Final = frozenset(KINDS)


def problems(values: Mapping[str, str]) -> Iterator[str]:
    """One for each of *values* that is of such a setting and is not accepted."""
    for name, listed in REFUSED.items():
        if name in values and not listed.has(values[name]):
            yield f"{name}={values[name]}: {listed.comment}"
    yield from changed(values, SHIPPED, "broker")
