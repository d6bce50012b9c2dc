"""Names that a reader's aliases give to the fields of a writer's Avro schema. No IO.

Avro's own library gives the writer's fields their new names before it looks for the reader's fields
(`Schema.applyAliases`, 1.11.4 to 1.12.2). fastavro looks for a field by its name first: where a field was renamed and
another one got its former name, it would give the former field's values to the new one.
"""

from collections.abc import Iterator
from typing import Any, Final

_RECORDS: Final = ("record", "error")


def with_aliases_applied(written: Any, reader: Any) -> Any:
    """The definition *written*, as JSON, with the names that data has for *reader*. Aliases of a field belong to a
    record of the same full name. A definition that differs from the reader's in aliases alone stays as it is.

    Raises ValueError for a definition that nests too deeply.
    """
    try:
        names = {
            record: {alias: field["name"] for field in fields for alias in field.get("aliases", ())}
            for record, fields in _records(reader, "")
        }
        if not any(names.values()) or _without_unused_keys(written) == _without_unused_keys(reader):
            return written
        return _with_field_names(written, "", names)
    except RecursionError:
        raise ValueError("the schema nests too deeply") from None


def _without_unused_keys(schema: Any) -> Any:
    """Without what does not count when Avro's library compares two schemas, and fastavro's own marks."""
    if isinstance(schema, list):
        return [_without_unused_keys(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_unused_keys(value)
        for key, value in schema.items()
        if key not in ("aliases", "doc") and not key.startswith("__")
    }


def _full_name(schema: dict[str, Any], namespace: str) -> str:
    name: str = schema["name"]
    within = schema.get("namespace", namespace)
    return name if "." in name or not within else f"{within}.{name}"


def _records(schema: Any, namespace: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Each record with its fields."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _records(branch, namespace)
    if not isinstance(schema, dict):
        return
    if schema.get("type") in _RECORDS:
        name = _full_name(schema, namespace)
        yield name, schema["fields"]
        for field in schema["fields"]:
            yield from _records(field["type"], name.rpartition(".")[0])
        return
    for key in ("type", "items", "values"):
        yield from _records(schema.get(key), namespace)


def _with_field_names(schema: Any, namespace: str, names: dict[str, dict[str, str]]) -> Any:
    if isinstance(schema, list):
        return [_with_field_names(branch, namespace, names) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") in _RECORDS:
        name = _full_name(schema, namespace)
        own, within = names.get(name, {}), name.rpartition(".")[0]
        fields = [
            {
                **field,
                "name": own.get(field["name"], field["name"]),
                "type": _with_field_names(field["type"], within, names),
            }
            for field in schema["fields"]
        ]
        return {**schema, "fields": fields}
    return {
        key: _with_field_names(value, namespace, names) if key in ("type", "items", "values") else value
        for key, value in schema.items()
    }
