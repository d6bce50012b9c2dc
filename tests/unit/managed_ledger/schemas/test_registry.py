import asyncio
import json
import threading
import time

import pytest

from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import OutcomeUnknown, StoreUnavailable
from magnetar_core.runtime.clock import LoopClock
from managed_ledger.errors import IncompatibleSchema, StorageUnavailable
from managed_ledger.records.records_pb2 import SchemaInfo
from managed_ledger.schemas.compatibility import Schema, SchemaType, Strategy, cannot_read, check_compatible
from managed_ledger.schemas.registry import SchemaRegistry, run_fairly
from managed_ledger.schemas.stored import version_bytes, version_of
from tests.support.faulty_store import FaultyStore
from tests.support.memory_bookkeeper import MemoryBookKeeper


def record(*fields: tuple[str, object] | tuple[str, object, object], name: str = "R") -> dict[str, object]:
    made = []
    for field in fields:
        item: dict[str, object] = {"name": field[0], "type": field[1]}
        if len(field) == 3:
            item["default"] = field[2]
        made.append(item)
    return {"type": "record", "name": name, "fields": made}


def avro(schema: object) -> Schema:
    return Schema(SchemaType.AVRO, json.dumps(schema).encode())


A_INT = record(("a", "int"))


def aliased(*fields: tuple[str, str, str]) -> dict[str, object]:
    """Fields with an alias each; a string without one has a default."""

    def more(kind: str, alias: str) -> dict[str, object]:
        if alias:
            return {"aliases": [alias]}
        return {"default": ""} if kind == "string" else {}

    made = [{"name": name, "type": kind} | more(kind, alias) for name, kind, alias in fields]
    return record() | {"fields": made}


@pytest.mark.parametrize(
    ("reader", "writer", "readable"),
    [
        (A_INT, A_INT, True),
        (record(("a", "long")), A_INT, True),
        (A_INT, record(("a", "long")), False),
        (record(("a", "string")), A_INT, False),
        (record(("a", "int"), ("b", "int")), A_INT, False),
        (record(("a", "int"), ("b", "int", 0)), A_INT, True),
        (record(), A_INT, True),
        (record(("a", ["null", "int"], None)), A_INT, True),
        (A_INT, record(("a", ["null", "int"], None)), False),
        (record(("a", "int"), name="S"), A_INT, True),
        ({**A_INT, "fields": [{"name": "b", "type": "int", "aliases": ["a"]}]}, A_INT, True),
        ({**A_INT, "name": "S", "fields": [{"name": "b", "type": "int", "aliases": ["a"]}]}, A_INT, False),
        # As Avro 1.11.4, 1.12.0 and 1.12.2: a field that an alias renames is not there by its former name.
        (aliased(("b", "int", "a"), ("a", "string", "")), A_INT, True),
        (aliased(("b", "int", "a"), ("a", "int", "")), A_INT, False),
        (aliased(("b", "string", "a"), ("a", "int", "")), A_INT, False),
        (aliased(("b", "int", "a"), ("c", "int", "a")), A_INT, False),
        (aliased(("b", "int", "a")), record(("a", "int"), ("b", "int")), False),
        (aliased(("a", "int", "b"), ("b", "string", "a")), record(("a", "string"), ("b", "int")), True),
        # As Apache's broker: symbols do not matter, names do.
        ({"type": "enum", "name": "E", "symbols": ["x"]}, {"type": "enum", "name": "E", "symbols": ["x", "y"]}, True),
        ({"type": "enum", "name": "E", "symbols": ["x"]}, {"type": "enum", "name": "F", "symbols": ["x"]}, False),
        ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "G", "size": 4}, False),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, False),
        ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 5}, False),
        ("bytes", "string", True),
    ],
)
def test_resolution_of_avro_schemas(reader: object, writer: object, readable: bool) -> None:
    assert (cannot_read(reader, writer) == []) is readable


def test_recursive_schemas_end() -> None:
    tree = {"type": "record", "name": "T", "fields": [{"name": "left", "type": ["null", "T"], "default": None}]}
    assert cannot_read(tree, json.loads(json.dumps(tree))) == []


def test_full_asks_for_both_directions_and_transitive_for_all_versions() -> None:
    with_default = avro(record(("a", "int"), ("b", "int", 0)))
    check_compatible(with_default, [avro(A_INT)], Strategy.FULL)
    without = avro(record(("a", "int"), ("b", "int")))
    with pytest.raises(IncompatibleSchema, match=r"BACKWARD: the new schema cannot read old data: value\.b"):
        check_compatible(without, [avro(A_INT)], Strategy.BACKWARD)
    check_compatible(without, [avro(A_INT)], Strategy.FORWARD)
    check_compatible(without, [avro(A_INT), with_default], Strategy.BACKWARD)
    with pytest.raises(IncompatibleSchema):
        check_compatible(without, [avro(A_INT), with_default], Strategy.BACKWARD_TRANSITIVE)
    check_compatible(without, [avro(A_INT)], Strategy.ALWAYS_COMPATIBLE)


def test_the_type_does_not_change() -> None:
    with pytest.raises(IncompatibleSchema, match="type AVRO, this one is JSON"):
        check_compatible(Schema(SchemaType.JSON, avro(A_INT).data), [avro(A_INT)], Strategy.FULL)
    check_compatible(Schema(SchemaType.STRING, b""), [Schema(SchemaType.STRING, b"")], Strategy.FULL)


async def test_where_schemas_are_not_taken_from_clients_the_first_is_not_either() -> None:
    clock = LoopClock()
    registry = SchemaRegistry(MemoryBookKeeper().client, MemoryStore(clock), clock)
    one, two = avro(A_INT), avro(record(("a", "int"), ("b", "int", 0)))
    with pytest.raises(IncompatibleSchema, match="does not take new schemas"):
        await registry.put_if_absent("public/default/t", one, Strategy.FULL, allow_update=False)
    assert await registry.get("public/default/t") is None
    assert await registry.put_if_absent("public/default/t", one, Strategy.FULL) == 0
    assert await registry.put_if_absent("public/default/t", one, Strategy.FULL, allow_update=False) == 0
    with pytest.raises(IncompatibleSchema, match="does not take new schemas"):
        await registry.put_if_absent("public/default/t", two, Strategy.FULL, allow_update=False)


async def test_a_schema_of_a_registry_elsewhere_is_kept_as_it_is() -> None:
    """EXTERNAL (Pulsar 4.2): bytes that brokers do not look into. 22 in the protocol and in stored records."""
    bookkeeper, clock = MemoryBookKeeper(), LoopClock()
    store = MemoryStore(clock)
    registry = SchemaRegistry(bookkeeper.client, store, clock)
    one, two = (Schema(SchemaType.EXTERNAL, data, (("k", "v"),)) for data in (b"\xff{", b""))
    assert await registry.put_if_absent("public/default/t", one, Strategy.FULL) == 0
    assert await registry.put_if_absent("public/default/t", two, Strategy.FULL) == 1
    with pytest.raises(IncompatibleSchema, match="has a schema of type EXTERNAL, this one is AVRO"):
        await registry.put_if_absent("public/default/t", avro(A_INT), Strategy.FULL)
    again = SchemaRegistry(bookkeeper.client, store, clock)
    assert [found.schema for found in await again.versions("public/default/t")] == [one, two]
    assert (SchemaType.EXTERNAL, SchemaType.EXTERNAL.stored) == (22, SchemaInfo.EXTERNAL)
    for kind in SchemaType:
        assert SchemaType.of_stored(kind.stored) is kind


async def test_versions_count_up_and_the_same_schema_keeps_its_version() -> None:
    bookkeeper, clock = MemoryBookKeeper(), LoopClock()
    store = MemoryStore(clock)
    registry = SchemaRegistry(bookkeeper.client, store, clock)
    one, two = avro(A_INT), avro(record(("a", "int"), ("b", "int", 0)))
    assert await registry.get("public/default/t") is None
    assert await registry.put_if_absent("public/default/t", one, Strategy.FULL) == 0
    assert await registry.put_if_absent("public/default/t", two, Strategy.FULL) == 1
    spaced = Schema(SchemaType.AVRO, json.dumps(A_INT, indent=2).encode())
    assert await registry.put_if_absent("public/default/t", spaced, Strategy.FULL) == 0
    with pytest.raises(IncompatibleSchema):
        await registry.put_if_absent("public/default/t", avro(record(("a", "string"))), Strategy.FULL)
    again = SchemaRegistry(bookkeeper.client, store, clock)  # after a restart
    assert [found.schema for found in await again.versions("public/default/t")] == [one, two]
    newest = await again.get("public/default/t")
    assert newest is not None
    assert (newest.version, newest.schema) == (1, two)
    assert await again.delete("public/default/t") == 2
    assert await again.get("public/default/t") is None
    for version in range(4):
        assert await again.get("public/default/t", version) is None, "its versions are deleted with it"
    assert await again.put_if_absent("public/default/t", avro("string"), Strategy.FULL) == 3
    assert await again.get("public/default/t", 1) is None
    third = await again.get("public/default/t", 3)
    assert third is not None
    assert third.schema == avro("string")
    await again.delete("public/default/t", force=True)
    assert bookkeeper.ledgers == {}


async def test_locks_are_kept_only_while_they_are_held() -> None:
    registry = SchemaRegistry(MemoryBookKeeper().client, MemoryStore(LoopClock()), LoopClock())
    same = [registry.put_if_absent("t/n/a", avro(A_INT), Strategy.FULL) for _ in range(3)]
    assert await asyncio.gather(*same) == [0, 0, 0]
    for name in ("b", "c"):
        await registry.put_if_absent(f"t/n/{name}", avro(A_INT), Strategy.FULL)
        await registry.delete(f"t/n/{name}")
    assert len(registry._locks) == 0


async def test_two_brokers_register_one_after_the_other() -> None:
    bookkeeper, clock = MemoryBookKeeper(), LoopClock()
    store = MemoryStore(clock)
    import asyncio

    registries = [SchemaRegistry(bookkeeper.client, store, clock) for _ in range(4)]
    schema = avro(A_INT)
    versions = await asyncio.gather(*(r.put_if_absent("p/d/t", schema, Strategy.FULL) for r in registries))
    assert versions == [0, 0, 0, 0]
    assert len(bookkeeper.ledgers) == 1


def test_versions_are_eight_bytes() -> None:
    assert version_bytes(0) == bytes(8)
    assert version_of(version_bytes(7)) == 7
    assert version_of(b"") is None
    assert version_of(version_bytes(7) + bytes(56)) == 7


async def test_a_schema_whose_registration_is_in_doubt_stays_readable() -> None:
    """I57: the locator may name its ledger, so that must stay."""
    away = True

    async def step(what: str, path: str) -> None:
        if not away:
            return
        if what == "put done":
            raise OutcomeUnknown("lost")
        if what == "get" and armed:
            raise StoreUnavailable("away")

    armed = False
    store = FaultyStore(MemoryStore(LoopClock()))
    registry = SchemaRegistry(MemoryBookKeeper().client, store, LoopClock())
    assert await registry.get("t/n/x") is None
    store.on_step = step
    taken = store.inner.put

    async def put(*arguments: object, **options: object) -> int:
        nonlocal armed
        armed = True
        return await taken(*arguments, **options)  # type: ignore[arg-type]

    store.inner.put = put  # type: ignore[method-assign]
    with pytest.raises(StorageUnavailable):
        await registry.put_if_absent("t/n/x", avro(A_INT), Strategy.FULL)
    away = False
    found = await registry.get("t/n/x")
    assert found is not None
    assert found.schema == avro(A_INT)
    assert await registry.put_if_absent("t/n/x", avro(A_INT), Strategy.FULL) == 0


async def test_what_is_kept_of_schemas_has_a_limit_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("managed_ledger.schemas.registry.CACHED_BYTES_MAX", 1_000)
    monkeypatch.setattr("managed_ledger.schemas.registry.INLINE_BYTES_MAX", 100)  # all of them beside the loop
    registry = SchemaRegistry(MemoryBookKeeper().client, MemoryStore(LoopClock()), LoopClock())
    sizes = []
    for number in range(20):
        fields = [{"name": f"field_{number}", "type": "long", "default": number}]
        definition = json.dumps({"type": "record", "name": "r", "fields": fields}).encode()
        schema = Schema(SchemaType.AVRO, definition)
        version = await registry.put_if_absent("public/default/t", schema, Strategy.ALWAYS_COMPATIBLE)
        found = await registry.get("public/default/t", version)
        assert found is not None
        assert found.schema.data == definition
        sizes.append(sum(len(one.schema.data) for one in registry._cache.values()))
    assert 500 < max(sizes) <= 1_000
    with pytest.raises(IncompatibleSchema):
        await registry.put_if_absent("public/default/t", Schema(SchemaType.AVRO, b"{" * 200), Strategy.FULL)


async def test_large_schemas_are_looked_at_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not on the loop, whose threads they would share."""
    monkeypatch.setattr("managed_ledger.schemas.registry.INLINE_BYTES_MAX", 100)
    running, most, threads = 0, 0, set()

    def compare(*_: object) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        threads.add(threading.get_ident())
        time.sleep(0.002)
        running -= 1

    large = Schema(SchemaType.AVRO, bytes(101))
    await asyncio.gather(*(run_fairly(compare, large) for _ in range(9)))
    assert (most, len(threads - {threading.get_ident()})) == (1, 1)
    await run_fairly(compare, Schema(SchemaType.AVRO, bytes(100)))
    assert threading.get_ident() in threads


async def test_a_schema_that_the_topic_has_byte_for_byte_is_compared_with_none(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = SchemaRegistry(MemoryBookKeeper().client, MemoryStore(LoopClock()), LoopClock())
    versions = [avro(record(("a", "int"), *((f"b{n}", "int", 0) for n in range(count)))) for count in range(3)]
    for one in versions:
        await registry.put_if_absent("p/d/t", one, Strategy.FULL_TRANSITIVE)

    def refuse(*_: object) -> bool:
        raise AssertionError("nothing has to be parsed")

    monkeypatch.setattr("managed_ledger.schemas.registry.same_schema", refuse)
    monkeypatch.setattr("managed_ledger.schemas.registry.check_valid", refuse)
    monkeypatch.setattr("managed_ledger.schemas.avro.DEFINITION_BYTES_MAX", 1)
    for number, one in enumerate(versions):
        assert await registry.put_if_absent("p/d/t", one, Strategy.FULL_TRANSITIVE) == number
        await registry.check("p/d/t", one, Strategy.FULL_TRANSITIVE)
