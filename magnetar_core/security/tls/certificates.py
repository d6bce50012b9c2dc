"""The name in a client's certificate, as the ssl library and gRPC give it. No IO."""

from collections.abc import Mapping
from typing import Any


def common_name(certificate: Mapping[str, Any] | None) -> str | None:
    """The first CN of the subject of a verified certificate (`getpeercert()`); None if there is no certificate or no
    CN in it."""
    for part in (certificate or {}).get("subject", ()):
        for name, value in part:
            if name == "commonName" and isinstance(value, str) and value.strip():
                return value
    return None
