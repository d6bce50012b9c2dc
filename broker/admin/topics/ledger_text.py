"""The metadata of a ledger as the text that Java's `LedgerMetadata.toSafeString` makes. No IO.

The password is never shown.
"""

from base64 import b64encode

from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.wire.entry import DigestType

_DIGESTS = {DigestType.HMAC: "MAC"}
"""The digests that Java calls otherwise."""


def ledger_text(metadata: LedgerMetadata) -> str:
    """`LedgerMetadata{formatVersion=3, …}`."""
    members = [
        ("formatVersion", metadata.format_version),
        ("ensembleSize", metadata.ensemble_size),
        ("writeQuorumSize", metadata.write_quorum),
        ("ackQuorumSize", metadata.ack_quorum),
        ("state", metadata.state.name),
    ]
    if metadata.is_closed:
        members += [("length", metadata.length), ("lastEntryId", metadata.last_entry_id)]
    digest = metadata.digest_type
    ensembles = ", ".join(f"{first}=[{', '.join(ensemble)}]" for first, ensemble in metadata.segments)
    custom = ", ".join(f"{name}=base64:{b64encode(value).decode()}" for name, value in metadata.custom_metadata)
    members += [
        ("digestType", _DIGESTS.get(digest, digest.name)),
        ("password", "OMITTED"),
        ("ensembles", f"{{{ensembles}}}"),
        ("customMetadata", f"{{{custom}}}"),
    ]
    return f"LedgerMetadata{{{', '.join(f'{name}={value}' for name, value in members)}}}"
