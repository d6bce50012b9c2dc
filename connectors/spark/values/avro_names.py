"""Names of types in a schema of Avro, made whole: types of one name may stand in different namespaces. No IO."""

from typing import Any, Final

_NAMED: Final = ("record", "error", "enum", "fixed")


def qualified(schema: Any) -> Any:
    """The schema with the full name of each type, where it is defined and where it is named. A name that is nowhere
    defined in full stands for the last type before it whose name ends so."""
    return _Names().qualify(schema, "")


class _Names:
    def __init__(self) -> None:
        self._full_names: set[str] = set()
        self._last: dict[str, str] = {}
        """Without namespace → the full name of the last type that is called so."""

    def qualify(self, schema: Any, namespace: str) -> Any:
        if isinstance(schema, list):
            return [self.qualify(branch, namespace) for branch in schema]
        if isinstance(schema, str):
            return self._resolved_name(schema, namespace)
        if not isinstance(schema, dict):
            return schema
        qualified = dict(schema)
        if schema.get("type") in _NAMED and "name" in schema:
            qualified["name"] = _full_name(schema["name"], schema.get("namespace", namespace))
            namespace, _, short = qualified["name"].rpartition(".")
            self._full_names.add(qualified["name"])
            self._last[short] = qualified["name"]
        elif "type" in schema:
            qualified["type"] = self.qualify(schema["type"], namespace)
        for key in ("items", "values"):
            if key in schema:
                qualified[key] = self.qualify(schema[key], namespace)
        if "fields" in schema:
            qualified["fields"] = [
                {**field, "type": self.qualify(field["type"], namespace)} for field in schema["fields"]
            ]
        return qualified

    def _resolved_name(self, name: str, namespace: str) -> str:
        whole = _full_name(name, namespace)
        return whole if whole in self._full_names else self._last.get(name.rpartition(".")[2], name)


def _full_name(name: str, namespace: str | None) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"
