"""The states of producers and consumers, as a program is told of them. No IO."""

from collections.abc import Callable
from typing import Literal, NamedTuple

State = Literal["connecting", "connected", "lost", "closed", "refused"]


class StateChange(NamedTuple):
    """What has happened to a producer or consumer of one topic (of one partition).

        connecting ──▶ connected ◀──▶ lost
             └──▶ refused ◀──────────────┘       closed: by the program

    Example:
        def on_state(change):
            print(change.topic, change.part, change.state, change.reason)

        with magnetar.Client("localhost:6648", on_state=on_state) as client:
            client.producer("orders").send(b"payload")
    """

    topic: str
    part: Literal["producer", "consumer"]
    state: State
    """*refused*: it has ended for good; the next call raises why. *lost*: it is connected again as soon as can be."""
    reason: str = ""
    """Of *lost* and *refused*."""


OnState = Callable[[StateChange], object]
