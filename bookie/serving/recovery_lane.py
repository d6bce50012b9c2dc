"""Copies give way to what clients write: the adds of auto-recovery come in turns, one chunk of a socket at a time.

    a chunk of recovery adds ──▶ journal ──▶ confirmed ──▶ rest ──▶ the next connection's turn
           its connection is held ─────────────────────────────────────────▲

Every chunk makes a journal group larger, and the adds of clients wait for the sync of a whole group. At 8 MiB of copies
under way (`autorecovery.repair.pace`) that was four to ten times what a client waits without them.

Rules:

1. Only while clients write: FOREGROUND_S after their last add every turn begins at once, so an idle bookie is filled
   as fast as its disk is.
2. Only connections that carry bulk recovery adds and nothing that a client adds. So neither a client that recovers
   a ledger of a few entries waits, nor one whose own adds travel on the same connection.
3. A rest is so many times as long as the chunk took, up to a longest one: on a disk so slow that this is short, the
   chunk is a small part of what a client waits for, and copies must not stop.
4. Several connections rest half as long at most, so that none of two waits much longer than one alone.
5. Whoever wants copies back first lets them rest less, or not at all (`copiesRestMaxMs`).
"""

import math
from collections import deque
from typing import Final

from bookie.serving.protocol import RECOVERY_TURN, Peer
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import KIB

# After the last add of a client: many write less than ten times a second and still want their answer soon.
FOREGROUND_S: Final = 1.0

# Recovery adds of one chunk (256 KiB at most) that count as bulk.
BULK_BYTES: Final = 32 * KIB

# A client's add meets the group of a copy in one of about a hundred cases, or in more where a chunk takes longer than
# 0.6 ms: at 32 instead of 100 the 99th percentile of clients was 1.3 to 2 times what it is without copies, at 100 1.1
# to 1.3 times (docs/benchmarks/rows.md). At the longest rest some 3.9 MiB/s are left to the copies of a bookie whose
# groups take 5 ms. Apache's auto-recovery, which gives an add up after 5 s, then waits 4.1 s for a batch of 1,000
# entries of 16 KiB, and 4.6 s where two of its workers copy to one bookie (rule 4).
REST_SHARE: Final = 100
REST_S_MAX: Final = 0.06


class RecoveryLane:
    """Decides whose turn it is. One for all connections of a bookie. Used on the loop."""

    def __init__(self, clock: Clock, rest_s_max: float = REST_S_MAX) -> None:
        """*rest_s_max*: the longest rest, in seconds; 0: copies do not give way."""
        self._clock = clock
        self._rest_s_max = rest_s_max
        self.foreground_s = -math.inf
        """Clock of the last add of a client."""
        self._held: deque[Peer] = deque()
        self._is_resting = False

    def __len__(self) -> int:
        """Connections that wait for their turn."""
        return len(self._held)

    def took(self, peer: Peer, size: int, now_s: float) -> bool:
        """The journal was given *size* bytes of recovery adds of *peer*; whether it wants to know when they are
        answered."""
        if (
            size < BULK_BYTES
            or not self._rest_s_max
            or not self._has_foreground(now_s)
            or peer.held_for & RECOVERY_TURN
        ):
            return False
        peer.hold(RECOVERY_TURN)
        self._held.append(peer)
        return True

    def answered(self, took_s: float, now_s: float) -> None:
        """Such a chunk was confirmed, or refused, *took_s* after it was given to the journal."""
        if not self._is_resting and self._held:
            self._is_resting = True
            rest_s = self.rest_after(took_s, now_s)
            self._clock.call_later(rest_s, lambda: self._end_pause(rest_s))

    def rest_after(self, took_s: float, now_s: float) -> float:
        """Seconds until the next turn; rules 1, 3 and 4."""
        if not self._has_foreground(now_s):
            return 0.0
        return min(REST_SHARE * took_s, self._rest_s_max) / (1 if len(self._held) < 2 else 2)

    def discard(self, peer: Peer) -> None:
        """The connection is gone."""
        if peer.held_for & RECOVERY_TURN and peer in self._held:
            self._held.remove(peer)

    def _has_foreground(self, now_s: float) -> bool:
        return now_s - self.foreground_s < FOREGROUND_S

    def _end_pause(self, rest_s: float) -> None:
        assert self._is_resting, "two rests at once would give two turns"
        self._is_resting = False
        if not self._held:
            return
        peer = self._held.popleft()
        if self._held:
            # Whoever's turn it is may have nothing to send: the others do not wait for it.
            self._is_resting = True
            self._clock.call_later(rest_s, lambda: self._end_pause(rest_s))
        peer.go_on(RECOVERY_TURN)
