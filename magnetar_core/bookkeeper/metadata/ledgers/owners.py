"""Whose entries are in a ledger, as its record says. No IO.

Brokers, Pulsar's and ours, write into the record of each ledger which topic, cursor or schema they made it for.
"""

from urllib.parse import unquote_plus

from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata


def owner_of(metadata: LedgerMetadata) -> str:
    """The owner for people: a topic, a cursor of it, a schema, or what else the record names; empty if nothing."""
    fields = {name: value.decode("utf-8", "replace") for name, value in metadata.custom_metadata}
    topic, cursor = _topic(fields.get("pulsar/managed-ledger", "")), fields.get("pulsar/cursor", "")
    if cursor:
        return f"subscription {cursor} of {topic}" if topic else f"subscription {cursor}"
    if topic:
        return topic
    schema = fields.get("pulsar/schemaId", "")
    if schema:
        return f"schema of {schema}"
    delayed = fields.get("pulsar/delayedIndexTopic", "")
    if delayed:
        return f"delayed messages of subscription {fields.get('pulsar/delayedIndexCursor', '?')} of {delayed}"
    compacted = fields.get("pulsar/compactedTopic", "")
    if compacted:
        return f"compacted messages of {compacted}"
    state_log = fields.get("magnetar/state-log", "").partition(" ")[0]
    if state_log:
        return f"state log {state_log}"
    return " ".join(fields[name] for name in ("application", "component") if fields.get(name))


def _topic(managed_ledger: str) -> str:
    """`tenant/namespace/domain/encoded name` as people write it; a name of another form stays as it is."""
    parts = managed_ledger.split("/")
    if len(parts) != 4 or not all(parts):
        return managed_ledger
    tenant, namespace, domain, encoded = parts
    return f"{domain}://{tenant}/{namespace}/{unquote_plus(encoded)}"
