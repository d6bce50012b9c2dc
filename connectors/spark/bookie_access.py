"""Whether bookies let this reader in."""

from magnetar_core.bookkeeper.client.errors import NoTls, Unauthorized
from magnetar_core.runtime.types import MagnetarError


class NotLetIn(MagnetarError):
    """The bookies do not let this reader in. Nothing is lost, so no option leaves out what they have."""


def check_let_in(error: BaseException) -> None:
    """Raises NotLetIn if that is what *error*, or what it comes from, says."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, NotLetIn):
            raise cause
        if isinstance(cause, Unauthorized | NoTls):
            raise NotLetIn(
                f"the bookies do not let this reader in: {cause}. Where they demand TLS, set bookkeeper.tlsDirectory: "
                "a folder with tls.crt, tls.key and ca.crt that they accept"
            ) from error
        cause = cause.__cause__
