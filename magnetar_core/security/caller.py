"""Who asks: the result of authentication, as it goes from a port to whoever decides what is allowed. Values only.
No IO."""

from typing import Final, NamedTuple


class Caller(NamedTuple):
    """The one who sent a request, over whichever port.

    *role* None: the caller has shown nothing, and there is no role for such callers (`anonymousUserRole`).
    """

    role: str | None
    original: str | None = None
    """The role for which a proxy asks; None: the caller asks for itself. Both need what the request needs."""
    is_trusted: bool = False
    """The server authenticates nobody, so everybody may do everything."""

    @property
    def work_name(self) -> str:
        """The name for the watch over the loop (`magnetar_core.runtime.process.loop_watch`)."""
        return str(self) if self.is_trusted else f"role {self}"

    def source(self, address: str) -> str:
        """The name of the share of a server that it takes: its role, or its address if it has none."""
        return self.original or self.role or address

    def __str__(self) -> str:
        """The text for logs and refusals."""
        if self.is_trusted:
            return "a client that was not authenticated"
        name = self.role or "a client without a role"
        return name if self.original is None else f"{self.original} (through {name})"


TRUSTED: Final = Caller(None, is_trusted=True)
"""Every caller, where authentication is off."""
