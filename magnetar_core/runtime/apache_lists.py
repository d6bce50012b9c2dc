"""Lists of Apache's settings in files of Apache's own format, beside the modules that read them.

    # A comment belongs to each setting below it, up to the next empty line.
    name=value

In a `without_effect.conf` the value says what kind of value the setting has with Apache: number, flag or text.

No IO but that of an import: a list is a part of the program, and is read once.
"""

from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Final, NamedTuple

KINDS: Final = ("number", "flag", "text")


class Listed(NamedTuple):
    """A setting on a list, with the values that stand there: a name may stand in several lines."""

    values: tuple[str, ...]
    comment: str

    def has(self, value: str) -> bool:
        """Whether *value* means the same as one of these: 0.0 and 0 do, TRUE and true, and "a,b" and "b, a"."""
        return _parsed_value(value) in map(_parsed_value, self.values)


def changed(values: Mapping[str, str], shipped: Mapping[str, Listed], whose: str) -> Iterator[str]:
    """A problem for each of *values* that is *shipped* with others: *whose* server ("broker") lacks the setting."""
    for name, value in values.items():
        if name not in shipped or shipped[name].has(value):
            continue
        accepted, comment = shipped[name]
        shown = " or ".join(text or "nothing" for text in sorted(accepted))
        given = "=*****" if name.endswith("Password") else f"={value}"
        why = comment and f", {comment}"
        yield f"{name}{given}: this {whose} does not have the setting{why}; leave it at what Apache ships, {shown}"


def _parsed_value(text: str) -> float | tuple[str, ...]:
    try:
        return float(text)
    except ValueError:
        return tuple(sorted(part.strip().lower() for part in text.split(",")))


def read_kinds(package: str, file: str) -> dict[str, str]:
    """The settings in a *file* of *package* that have no effect here, each with the kind of its values."""
    listed = read_list(package, file)
    assert all(len(row.values) == 1 and row.values[0] in KINDS for row in listed.values()), f"{package}/{file}"
    return {name: row.values[0] for name, row in listed.items()}


def read_list(package: str, file: str) -> dict[str, Listed]:
    """The settings in a *file* of *package*, by name."""
    listed: dict[str, Listed] = {}
    comment = ""
    for line in files(package).joinpath(file).read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            comment = f"{comment} {line.removeprefix('#').strip()}".strip()
        elif not line:
            comment = ""
        else:
            name, separator, value = line.partition("=")
            assert separator, f"{package}/{file}: {line!r} is not name=value"
            before = listed[name].values if name in listed else ()
            listed[name] = Listed((*before, value), comment)
    return listed
