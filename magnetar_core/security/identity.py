"""What a check of credentials finds out, or why it refuses them. Values only. No IO.

The text of a refusal is for the log of the server. It never holds the credentials, nor a part of them; clients
only learn that they are not valid.
"""

from typing import Final, NamedTuple

from magnetar_core.runtime.types import MagnetarError

DEFAULT_CLAIM: Final = "sub"
"""The claim of a token that names the role."""

DEFAULT_ALGORITHM: Final = "RS256"
"""What signs tokens, where there is a pair of keys."""


class Identity(NamedTuple):
    """Whose credentials they are."""

    role: str
    expires_s: float | None = None
    """The credentials are valid until then, in seconds since 1970; None: as long as the connection lasts."""


class NotValid(MagnetarError):
    """Credentials were shown and are not valid."""
