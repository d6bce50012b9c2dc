"""One bundle as one broker has it, and what a lookup does next about it. No IO.

    AWAY ── claimed ──▶ OWNED ── unload ──▶ UNLOADING ── closed, lost ──▶ CLOSING ── returned ──▶ AWAY
                        │  │
                        │  └─── split ───▶ SPLITTING ── cut, lost ──▶ AWAY      (── kept ──▶ OWNED)
                        └───── lost ──────▶ AWAY

    a part of it:       AWAY ── part ──▶ PART ── claimed ──▶ OWNED              (── kept ──▶ AWAY)

`MOVES` has all of these; any other move is a defect. What else is true of a bundle (who waits for it, whether its node
is doubtful) stands beside the phase and changes by itself.
"""

from enum import Enum, auto
from typing import Final, NamedTuple

from broker.ownership.rules import BrokerAddress
from magnetar_core.topics.topic_name import TopicName


class Phase(Enum):
    """What a bundle is to this broker."""

    AWAY = auto()
    """It is not ours. A node of ours may be there still, and is being removed then."""
    OWNED = auto()
    """It is served here."""
    SPLITTING = auto()
    """It is served here, and its parts are getting nodes."""
    PART = auto()
    """It is a part of such a bundle, and is served here as long as that is."""
    UNLOADING = auto()
    """It is ours, takes no clients any more, and its topics are being closed."""
    CLOSING = auto()
    """It is not ours any more, and giving it back has not come to its end."""


class Event(Enum):
    """What happens to it."""

    CLAIMED = auto()
    """Its node is ours."""
    LOST = auto()
    UNLOAD = auto()
    CLOSED = auto()
    """Its topics are."""
    RETURNED = auto()
    """Its node is gone, or is removed in the background from here on."""
    SPLIT = auto()
    PART = auto()
    CUT = auto()
    """The namespace has its parts now."""
    KEPT = auto()
    """A split, or an unload, is not done."""


MOVES: Final[dict[Phase, dict[Event, Phase]]] = {
    Phase.AWAY: {Event.CLAIMED: Phase.OWNED, Event.PART: Phase.PART},
    Phase.OWNED: {
        Event.UNLOAD: Phase.UNLOADING,
        Event.SPLIT: Phase.SPLITTING,
        Event.CUT: Phase.AWAY,
        Event.LOST: Phase.AWAY,
    },
    Phase.SPLITTING: {Event.CUT: Phase.AWAY, Event.KEPT: Phase.OWNED, Event.LOST: Phase.AWAY},
    Phase.PART: {Event.CLAIMED: Phase.OWNED, Event.KEPT: Phase.AWAY},
    Phase.UNLOADING: {Event.CLOSED: Phase.CLOSING, Event.LOST: Phase.CLOSING, Event.KEPT: Phase.OWNED},
    Phase.CLOSING: {Event.RETURNED: Phase.AWAY},
}

_OWNED: Final = frozenset((Phase.OWNED, Phase.SPLITTING, Phase.UNLOADING))


class Bundle:
    """What this broker knows of one bundle."""

    def __init__(self, name: str) -> None:
        self.name = name
        """`tenant/namespace/0x…_0x…`."""
        self.phase = Phase.AWAY
        self.whole: Bundle | None = None
        """For a PART: the bundle that is being split."""
        self.is_resuming = False
        """It was ours in a session that has ended: its node is to be made again."""
        self.takers = 0
        """Those that wait here to take it as soon as it is free."""
        self.promised: BrokerAddress | None = None
        """It is being moved to this broker, and clients are sent there while nobody owns it."""
        self.asked: set[TopicName] = set()
        """Topics of it for which its owner is being looked for."""
        self.is_owner_away = False
        """Its owner does not answer, and it will be ours."""

    def move(self, event: Event) -> None:
        """Change the phase (`MOVES`)."""
        self.phase = MOVES[self.phase][event]
        if self.phase is not Phase.PART:
            self.whole = None
        if not self.is_owned:
            self.is_resuming = False

    @property
    def namespace(self) -> str:
        return self.name.rpartition("/")[0]

    @property
    def is_owned(self) -> bool:
        """Its node is ours, as far as is known."""
        return self.phase in _OWNED

    @property
    def is_served(self) -> bool:
        """Clients of its topics are taken."""
        if self.phase is Phase.PART:
            return self.whole is not None and self.whole.phase is Phase.SPLITTING
        return self.phase is Phase.OWNED or self.phase is Phase.SPLITTING

    @property
    def is_ending(self) -> bool:
        """It is being given back, or the end of that decides."""
        return self.phase is not Phase.AWAY and not self.is_served


class OwnerNode(NamedTuple):
    """The node of a bundle's owner in the metadata store."""

    owner: BrokerAddress
    is_unloading: bool
    is_own: bool
    """It was made in this broker's session."""
    version: int


class Lookup(NamedTuple):
    """Who asks where a bundle is."""

    own_address: BrokerAddress
    is_leaving: bool
    """This broker takes no bundles any more."""
    authoritative: bool
    """Another broker sent the client here, to have the bundle taken."""


class Action(Enum):
    """What a lookup does next."""

    SERVE = auto()
    """Answer with this broker."""
    AWAIT_RETURN = auto()
    """Wait until it has another phase here."""
    SEND_TO_PROMISED = auto()
    TAKE = auto()
    """Make it ours."""
    RANK = auto()
    """Ask which of the living brokers shall have it; if that is this one, take it."""
    REMOVE_FORMER = auto()
    """Remove the node, which this broker left in an earlier session or life."""
    AWAIT_OWNER = auto()
    """Wait until its owner has given it back."""
    ASK_OWNER = auto()
    """Send the client to the owner if that answers; if not, wait for the end of its session."""


def next_action(bundle: Bundle, node: OwnerNode | None, lookup: Lookup) -> Action:
    """What a lookup does about *bundle*, whose *node* was read if it is AWAY (None: nobody owns it)."""
    if bundle.is_served:
        return Action.SERVE
    if bundle.is_ending:
        return Action.AWAIT_RETURN
    if node is None:
        if bundle.promised is not None and bundle.promised.native_url != lookup.own_address.native_url:
            return Action.SEND_TO_PROMISED
        return Action.TAKE if lookup.authoritative and not lookup.is_leaving else Action.RANK
    if node.is_own and not node.is_unloading:
        return Action.TAKE
    if node.is_own or node.owner.native_url == lookup.own_address.native_url:
        return Action.REMOVE_FORMER  # it was not released at an unload, or a dead process at our address left it
    return Action.AWAIT_OWNER if node.is_unloading else Action.ASK_OWNER
