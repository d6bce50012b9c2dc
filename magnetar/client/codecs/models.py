"""The definition in Avro of a pydantic model, from its JSON schema: pydantic itself is not imported. No IO.

What is written has the types of the schema for serialization; whether a field may be missing is what validation says.
"""

import re
from typing import Any, Final

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PLAIN: Final = {"integer": "long", "number": "double", "string": "string", "boolean": "boolean", "null": "null"}
_OF_PLAIN: Final[dict[str, tuple[type, ...]]] = {
    "long": (int,), "double": (int, float), "string": (str,), "boolean": (bool,), "array": (list,), "map": (dict,),
    "record": (dict,), "enum": (str,), "null": (type(None),),
}  # fmt: skip
_METHODS: Final = ("model_json_schema", "model_dump_json", "model_dump", "model_validate_json", "model_validate")


def is_model(kind: Any) -> bool:
    """Whether *kind* is a class with the methods of a pydantic model."""
    return isinstance(kind, type) and all(callable(getattr(kind, name, None)) for name in _METHODS)


def definition_of(kind: Any) -> dict[str, Any]:
    """Raises TypeError, ValueError naming the field that has no type in Avro."""
    written, taken = kind.model_json_schema(mode="serialization"), kind.model_json_schema(mode="validation")
    converter = _Converter(written.get("$defs", {}), taken.get("$defs", {}))
    definition = converter.record(written, taken, kind.__name__, kind.__name__)
    if not isinstance(definition, dict):
        raise TypeError(f"{kind.__name__} is not a record")
    return definition


class _Converter:
    def __init__(self, written: dict[str, Any], taken: dict[str, Any]) -> None:
        """The types that others refer to, by the two schemas."""
        self._written = written
        self._taken = taken
        self._made = set[str]()

    def record(self, schema: Any, taken: Any, name: str, place: str) -> Any:
        if "$ref" in schema:
            return self._avro_schema(schema, place)
        if not _NAME.fullmatch(name):
            raise ValueError(f"{place}: {name!r} is a name that Avro does not allow: use letters, digits and _")
        self._made.add(name)
        fields = []
        required = taken.get("required", ())
        for field, kind in schema.get("properties", {}).items():
            if not _NAME.fullmatch(field):
                raise ValueError(f"{place}.{field} is a name that Avro does not allow: use letters, digits and _")
            entry = {"name": field, "type": self._avro_schema(kind, f"{place}.{field}")}
            if field not in required:
                entry.update(_avro_default(entry["type"], taken.get("properties", {}).get(field, {})))
            fields.append(entry)
        return {"type": "record", "name": name, "fields": fields}

    def _avro_schema(self, schema: Any, place: str) -> Any:
        if "$ref" in schema:
            name = str(schema["$ref"]).rpartition("/")[2]
            if name in self._made:
                return name
            self._made.add(name)
            return self._avro_definition(self._written[name], self._taken.get(name, {}), name, place)
        if "anyOf" in schema or "oneOf" in schema:
            branches = schema.get("anyOf") or schema["oneOf"]
            others = [branch for branch in branches if branch.get("type") != "null"]
            if len(others) == 1 and len(branches) == 2:
                return ["null", self._avro_schema(others[0], place)]
            raise TypeError(f"{place} is a union of several types, of which a reader could not know which it has")
        if len(schema.get("allOf", ())) == 1:
            return self._avro_schema(schema["allOf"][0], place)
        kind = schema.get("type", "string" if isinstance(schema.get("const"), str) else None)
        if kind == "array" and "items" in schema and "prefixItems" not in schema:
            return {"type": "array", "items": self._avro_schema(schema["items"], place + "[]")}
        if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
            return {"type": "map", "values": self._avro_schema(schema["additionalProperties"], place + "{}")}
        if kind in _PLAIN:
            return _PLAIN[kind]
        raise TypeError(f"{place} has no type in Avro; take another type, or magnetar.Avro(definition, …)")

    def _avro_definition(self, schema: Any, taken: Any, name: str, place: str) -> Any:
        if "properties" in schema or schema.get("type") == "object":
            return self.record(schema, taken, name, place)
        symbols = schema.get("enum")
        if (
            symbols
            and _NAME.fullmatch(name)
            and all(isinstance(item, str) and _NAME.fullmatch(item) for item in symbols)
        ):
            return {"type": "enum", "name": name, "symbols": list(symbols)}
        self._made.discard(name)  # no type with a name
        return self._avro_schema(schema, place)


def _avro_default(kind: Any, taken: Any) -> dict[str, Any]:
    """The default of a field, as Avro has it; of a union it is of the first type."""
    if "default" not in taken:
        return {}
    default = taken["default"]
    if isinstance(kind, list):
        if default is None:
            return {"default": None}
        inner = next(branch for branch in kind if branch != "null")
        return {"type": [inner, "null"], "default": default} if _is_possible_default(default, inner) else {}
    return {"default": default} if _is_possible_default(default, kind) else {}


def _is_possible_default(default: Any, kind: Any) -> bool:
    named = kind["type"] if isinstance(kind, dict) else kind
    is_number = not isinstance(default, bool) or named == "boolean"
    return is_number and isinstance(default, _OF_PLAIN.get(named, (str, dict)))
