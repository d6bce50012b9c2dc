"""Avro definitions, drawn, and others that follow from them by a change or two. Pure."""

import copy
import random
from typing import Any, Final

_PLAIN: Final = ("int", "long", "float", "double", "string", "bytes", "boolean", "null")
_DEFAULTS: Final[dict[str, Any]] = {
    "int": 1, "long": 2, "float": 0.5, "double": 0.25, "string": "x", "bytes": "", "boolean": True, "null": None,
}  # fmt: skip


class SchemaDraw:
    """Draws from *rng*. Names of types are counted, so that none is defined twice."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._names = 0

    def record(self) -> dict[str, Any]:
        self._names = 0
        return self._record("R", 0)

    def changed(self, schema: dict[str, Any]) -> dict[str, Any]:
        """*schema* after one or two changes, some of which do not matter."""
        made = copy.deepcopy(schema)
        for _ in range(self._rng.choices((1, 2), (4, 1))[0]):
            self._change(made)
        return made

    def _one_of(self, choices: Any) -> Any:
        choices = list(choices)
        return choices[self._rng.randrange(len(choices))]

    def _name(self, letter: str) -> str:
        self._names += 1
        return f"{letter}{self._names}"

    def _record(self, name: str, depth: int) -> dict[str, Any]:
        fields = [self._field(f"f{number}", depth) for number in range(self._rng.randrange(1, 5))]
        return {"type": "record", "name": name, "fields": fields}

    def _field(self, name: str, depth: int) -> dict[str, Any]:
        kind = self._type(depth)
        field: dict[str, Any] = {"name": name, "type": kind}
        if self._rng.random() < 0.4:
            self._give_default(field)
        return field

    def _give_default(self, field: dict[str, Any]) -> None:
        kind = field["type"]
        first = kind[0] if isinstance(kind, list) and kind else kind
        if isinstance(first, str) and first in _DEFAULTS:
            field["default"] = _DEFAULTS[first]
        elif isinstance(first, dict) and first["type"] in ("array", "map"):
            field["default"] = [] if first["type"] == "array" else {}
        elif isinstance(first, dict) and first["type"] == "enum":
            field["default"] = first["symbols"][0]

    def _type(self, depth: int) -> Any:
        what = self._rng.random()
        if depth > 1 or what < 0.55:
            return self._one_of(_PLAIN)
        if what < 0.65:
            return {"type": "array", "items": self._type(depth + 1)}
        if what < 0.72:
            return {"type": "map", "values": self._type(depth + 1)}
        if what < 0.80:
            symbols = ["A", "B", "C"][: self._rng.randrange(1, 4)]
            return {"type": "enum", "name": self._name("E"), "symbols": symbols}
        if what < 0.84:
            return {"type": "fixed", "name": self._name("F"), "size": self._rng.randrange(1, 5)}
        if what < 0.93:
            others = [one for one in _PLAIN if one != "null"]
            return ["null", self._one_of(others)] if self._rng.random() < 0.7 else [self._one_of(others), "null"]
        return self._record(self._name("R"), depth + 1)

    def _change(self, record: dict[str, Any]) -> None:
        fields = record["fields"]
        what = self._one_of(
            ("add", "add", "remove", "type", "type", "default", "order", "alias", "inner", "inner", "name")
        )
        field = self._one_of(fields) if fields else None
        if what == "add" or field is None:
            taken = {one["name"] for one in fields}
            free = next(name for name in (f"f{number}" for number in range(20)) if name not in taken)
            self._names += 20
            fields.insert(self._rng.randrange(len(fields) + 1), self._field(free, 1))
        elif what == "remove":
            fields.remove(field)
        elif what == "type":
            self._names += 20
            field["type"] = self._wider(field["type"]) if self._rng.random() < 0.6 else self._type(1)
            field.pop("default", None)
        elif what == "default":
            if field.pop("default", self) is self:
                self._give_default(field)
        elif what == "order":
            self._rng.shuffle(fields)
        elif what == "alias":
            field["aliases"], field["name"] = [field["name"]], f"{field['name']}x"
        elif what == "name":
            record["name"] = f"{record['name']}x"
        else:
            self._change_inner(field)

    def _wider(self, kind: Any) -> Any:
        if isinstance(kind, str):
            wider = {"int": ("long", "float"), "long": ("float", "double"), "float": ("double",), "string": ("bytes",),
                     "bytes": ("string",), "double": ("float",)}  # fmt: skip
            return (
                self._one_of(wider.get(kind, ("int",)))
                if self._rng.random() < 0.7 or kind == "null"
                else ["null", kind]
            )
        if isinstance(kind, list):
            if self._rng.random() < 0.5:
                return next(one for one in kind if one != "null")
            missing = [one for one in _PLAIN if one not in kind]
            return [*kind, self._one_of(missing)]
        return ["null", kind]

    def _change_inner(self, field: dict[str, Any]) -> None:
        kind = field["type"]
        if not isinstance(kind, dict):
            return
        if kind["type"] == "record":
            self._change(kind)
        elif kind["type"] == "enum":
            if self._rng.random() < 0.5 or len(kind["symbols"]) == 1:
                kind["symbols"] = [*kind["symbols"], "D"]
            else:
                kind["symbols"] = kind["symbols"][:-1]
            field.pop("default", None)
            if self._rng.random() < 0.3:
                kind["default"] = kind["symbols"][0]
        elif kind["type"] == "fixed":
            kind["size"] += 1
        else:
            inner = "items" if kind["type"] == "array" else "values"
            kind[inner] = self._wider(kind[inner])


def schema_pairs(rng: random.Random, count: int) -> list[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
    """So many times a kind of schema, a definition, and some that may follow it."""
    draw = SchemaDraw(rng)
    pairs = []
    for _ in range(count):
        old = draw.record()
        kind = "AVRO" if rng.random() < 0.7 else "JSON"
        pairs.append((kind, old, [draw.changed(old) for _ in range(rng.randrange(1, 4))]))
    return pairs
