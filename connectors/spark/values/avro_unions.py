"""Unions of several types in Avro records, as Spark has them. No IO.

    union                     column
    null and X, or X alone    X
    int and long              bigint
    float and double          double
    others                    struct<member0, member1, …>, one for each type but null, of which one is not null

A record of one field has the bytes of that field. So a library that does not say which type a value had is asked to
read records instead: `[X, Y]` is decoded as `[{member0: X}, {member1: Y}]`.
"""

from typing import Any, Final

_NUMBERS: Final = (frozenset({"int", "long"}), frozenset({"float", "double"}))


def branches_of(union: list[Any]) -> list[Any]:
    """The branches without null."""
    return [branch for branch in union if branch != "null"]


def number_of(union: list[Any]) -> str | None:
    """The wider type of a union of two numbers; None for other unions."""
    names = frozenset(branch if isinstance(branch, str) else str(branch.get("type")) for branch in branches_of(union))
    return {_NUMBERS[0]: "long", _NUMBERS[1]: "double"}.get(names)


def has_members(union: list[Any]) -> bool:
    """Whether the union becomes a struct."""
    return len(branches_of(union)) > 1 and number_of(union) is None


def members(union: list[Any]) -> list[dict[str, Any]]:
    """The branches as fields of a record."""
    return [{"name": f"member{number}", "type": branch} for number, branch in enumerate(branches_of(union))]


def as_records(union: list[Any], path: tuple[str, ...]) -> list[Any]:
    """The union that has the same bytes and names its types. *path* makes their names: those of the fields around it,
    so that versions of a schema have the same ones."""
    place = "_".join(f"{len(name)}{name}" for name in path)
    records: list[Any] = [
        {"type": "record", "name": f"Member{number}_of_{place}", "fields": [field]}
        for number, field in enumerate(members(union))
    ]
    for number, branch in enumerate(union):
        if branch == "null":
            records.insert(number, "null")
    return records
