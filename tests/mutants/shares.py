"""Seeded bugs of what one client may take from the others: memory for halves of frames and properties, lists, turns."""

from typing import Final

from tests.mutants.catalogue import Mutant

_UNFINISHED: Final = ("tests/unit/magnetar_core/bookkeeper/wire/test_unfinished.py",)
_LISTINGS: Final = ("tests/unit/bookie/serving/test_listings.py",)
_HALVES: Final = ("tests/unit/bookie/serving/test_back_pressure.py", "-k", "half_frames or nothing_comes")
_ARRIVALS: Final = ("tests/unit/broker/test_arrivals.py",)
_PROPERTIES: Final = ("tests/unit/broker/topic/test_properties.py",)
_MESSAGES: Final = ("tests/unit/broker/test_broker.py", "-k", "so_many_properties")
_METADATA: Final = ("tests/unit/managed_ledger/test_messages.py", "-k", "metadata or looked_through")
_FLOW: Final = ("tests/unit/broker/binary/test_flow.py",)
_STRANGERS: Final = ("tests/unit/broker/test_security.py", "-k", "frames_of_the_unauthenticated")
_REQUESTS: Final = ("tests/unit/broker/grpc/test_requests.py",)

MUTANTS: Final = (
    # -- frames that are not whole
    Mutant(
        "only what has come of a frame counts",
        "magnetar_core/bookkeeper/wire/unfinished.py",
        "        self.bytes += held_bytes + missing_bytes\n",
        "        missing_bytes = 0\n        self.bytes += held_bytes + missing_bytes\n",
        _UNFINISHED,
    ),
    Mutant(
        "a slow frame keeps its room although others wait",
        "magnetar_core/bookkeeper/wire/unfinished.py",
        "            if now_s - frame.began_s >= SLOW_S:\n",
        "            if now_s - frame.began_s >= STILL_S:\n",
        _UNFINISHED,
    ),
    Mutant(
        "time in which a socket is not read counts",
        "magnetar_core/bookkeeper/wire/unfinished.py",
        "                frame.began_s = frame.moved_s = now_s\n",
        "                frame.began_s = now_s\n",
        _UNFINISHED,
    ),
    Mutant(
        "the first frame is read first, however long it is",
        "magnetar_core/bookkeeper/wire/unfinished.py",
        "min(self._waiting, key=lambda one: self._frames[one].bytes)",
        "next(iter(self._waiting))",
        _UNFINISHED,
    ),
    Mutant(
        "whoever has the turn keeps it",
        "magnetar_core/bookkeeper/wire/unfinished.py",
        "        if self._turn is not None and now_s - self._turn_began_s >= TURN_S:\n            self._turn = None\n",
        "",
        _UNFINISHED,
    ),
    Mutant(
        "a frame that became whole while it waited leaves its socket unread",
        "magnetar_core/bookkeeper/wire/unfinished.py",
        "            self._waiting_bytes -= self._frames[sender].bytes\n            sender.go_on_with_frame()\n",
        "            self._waiting_bytes -= self._frames[sender].bytes\n",
        _UNFINISHED,
    ),
    Mutant(
        "a bookie keeps half a frame until the garbage collector comes",
        "bookie/serving/connection.py",
        "        self._splitter.give_up_held()",
        "        self._splitter.missing_bytes",
        _HALVES,
    ),
    Mutant(
        "a bookie does not count halves of frames",
        "bookie/serving/connection.py",
        "        if held_bytes >= COUNTED_BYTES or self._is_counted:\n",
        "        if self._is_counted:\n",
        _HALVES,
    ),
    Mutant(
        "who is not authenticated may send large frames",
        "broker/binary/server.py",
        "FrameSplitter(HANDSHAKE_FRAME_BYTES if self._is_stranger else frame_bytes_max)",
        "FrameSplitter(frame_bytes_max)",
        _STRANGERS,
    ),
    Mutant(
        "parts of frames of the unauthenticated have no sum",
        "broker/binary/server.py",
        "        if held_bytes and server.handshake_bytes > HANDSHAKE_BYTES_MAX:\n",
        "        if held_bytes > HANDSHAKE_BYTES_MAX:\n",
        _STRANGERS,
    ),
    # -- lists of entries
    Mutant(
        "each request copies the ids for itself",
        "bookie/serving/reads.py",
        "        asked = self._lists.pop(ledger_id)\n",
        "        waiting = self._lists[ledger_id]\n        asked = [waiting.pop(0)]\n"
        "        if not waiting:\n            del self._lists[ledger_id]\n",
        _LISTINGS,
    ),
    Mutant(
        "a list lacks what the cache has and the index has not",
        "bookie/serving/listings.py",
        "sorted({*ahead[bisect_left(ahead, first) :], *some})",
        "some",
        _LISTINGS,
    ),
    Mutant(
        "a list that is too large is made to its end",
        "bookie/serving/listings.py",
        "        if self._availability.size_bytes > self._bytes_max:\n",
        "        if end is None and self._availability.size_bytes > self._bytes_max:\n",
        _LISTINGS,
    ),
    Mutant(
        "lists are sent to a client that takes no answers",
        "bookie/serving/reads.py",
        "            while at < len(asked) and self._may_start():\n",
        "            while at < len(asked):\n",
        _LISTINGS,
    ),
    Mutant(
        "lists that wait are not counted",
        "bookie/serving/reads.py",
        "        return len(self._cold) + len(self._urgent) + self._lists_waiting\n",
        "        return len(self._cold) + len(self._urgent)\n",
        _LISTINGS,
    ),
    # -- turns
    Mutant(
        "who came first with thousands is served first",
        "broker/arrivals.py",
        "        number = of.round = max(of.round, self._round) + 1\n",
        "        number = of.round = 1\n",
        _ARRIVALS,
    ),
    Mutant(
        "a source that was away catches up",
        "broker/arrivals.py",
        "max(of.round, self._round) + 1",
        "of.round + 1",
        _ARRIVALS,
    ),
    Mutant(
        "clients that come to topics do not wait for their turn",
        "broker/binary/answers.py",
        "        arrivals = self._arrivals if arrives else None\n",
        "        arrivals = self._arrivals if looks_up else None\n",
        _ARRIVALS,
    ),
    # -- properties
    Mutant(
        "properties count for ever",
        "broker/topic/properties.py",
        "        self._kept.change(-self._counted_bytes)\n",
        "        self._kept.change(0)\n",
        _PROPERTIES,
    ),
    Mutant(
        "properties of all clients have no sum",
        "broker/topic/properties.py",
        "            self.of_all.check_room(size_bytes, what)\n",
        "            pass\n",
        _PROPERTIES,
    ),
    Mutant(
        "a producer may tell anything of itself",
        "broker/binary/producers.py",
        "            check_size(request.metadata, _named(request))\n",
        "            pass\n",
        _PROPERTIES,
    ),
    Mutant(
        "a message may have any number of properties",
        "broker/binary/producers.py",
        "        elif of_metadata > ORDINARY_METADATA_BYTES and",
        "        elif of_metadata > 2**31 and",
        _MESSAGES,
    ),
    Mutant(
        "a key may have any length",
        "managed_ledger/messages.py",
        "                if tag in keys and size > KEY_BYTES_MAX:\n",
        "                if not keys and size > KEY_BYTES_MAX:\n",
        _MESSAGES,
    ),
    Mutant(
        "metadata are decoded for any number of properties",
        "managed_ledger/messages.py",
        "    if len(parts.metadata) > ORDINARY_METADATA_BYTES and (problem := fields_problem(parts.metadata)):\n"
        "        raise Corruption(problem)\n",
        "",
        _METADATA,
    ),
    Mutant(
        "a large command that waits is not counted",
        "broker/binary/flow.py",
        "        self.command_bytes = size_bytes if size_bytes >= LARGE_COMMAND_BYTES else 0\n",
        "        self.command_bytes = 0\n",
        _FLOW,
    ),
    # -- requests over gRPC
    Mutant(
        "requests of one role are all read at once",
        "broker/grpc/requests.py",
        "            async with slots:\n                yield\n",
        "            yield\n",
        _REQUESTS,
    ),
    Mutant(
        "slow strangers keep others from health",
        "broker/grpc/requests.py",
        "            if now_s - began_s < SLOW_S:\n",
        "            if now_s - began_s < REQUEST_S:\n",
        _REQUESTS,
    ),
    Mutant(
        "a request is read before it is known who calls",
        "broker/grpc/service.py",
        "                wanted = await _guard(read, context, context, self._broker.doors)\n",
        "                wanted = await _guard(read, context, context)\n",
        _REQUESTS,
    ),
)
