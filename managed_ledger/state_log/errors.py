"""What an operation on a replicated state log can fail with. No IO.

StateLogError
├── NotLeader              another node leads, or none does
├── ProposalUnknown        whether the edit is in the log is not known; propose it again with the same token
├── TokenExpired           so many edits came since the token was made that nobody knows whether it was applied
├── TooManyProposals       too much is not acknowledged yet; wait, then propose again
├── EditRefused            the edit can never be stored (too large)
├── LogUnavailable         bookies or metadata store fail at the moment; a retry later may succeed
│   ├── LeadershipLost     another node leads by now
│   └── SnapshotUnavailable  too far behind, and no other node has a snapshot to give
└── LogStopped             this node was closed, or has stopped for ever; the text says why
    ├── LogDamaged         what stands in the log is not what its format promises
    └── ApplyFailed        the state machine raised (I127)
"""

from magnetar_core.runtime.types import MagnetarError


class StateLogError(MagnetarError):
    """Root of the errors of state logs; the texts name the log."""


class NotLeader(StateLogError):
    """Only the leader takes edits and gives barriers."""

    def __init__(self, text: str, leader: str | None) -> None:
        """*leader*: the name of the node that led when this one last looked; None if none did."""
        super().__init__(text)
        self.leader = leader


class ProposalUnknown(StateLogError):
    """The leadership ended before the edit was acknowledged. It may be applied later, or never."""

    def __init__(self, text: str, token: object) -> None:
        """*token*: with it the edit can be proposed again, here or at the next leader, and is applied once (I125)."""
        super().__init__(text)
        self.token = token


class TokenExpired(StateLogError):
    """The edit was not applied by this proposal; whether an earlier one with this token was is not known any more."""


class TooManyProposals(StateLogError):
    """The leader has too many edits that are not acknowledged. Nothing was done."""


class EditRefused(StateLogError):
    """This edit can never be stored. Nothing was done."""


class LogUnavailable(StateLogError):
    """Too few bookies, or the metadata store does not answer."""


class LeadershipLost(LogUnavailable):
    """Another node has taken the log over."""


class SnapshotUnavailable(LogUnavailable):
    """The ledgers that this node needs were dropped, and no other node gave it a snapshot."""


class LogStopped(StateLogError):
    """This node takes no part any more. Start it anew."""


class LogDamaged(LogStopped):
    """Ledgers, list or snapshot contradict each other. Going on could make two states of one log."""


class ApplyFailed(LogStopped):
    """The state machine raised while it applied an edit: what its state is now is not known (I127)."""
