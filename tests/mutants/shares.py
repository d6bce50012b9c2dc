"""Seeded bugs of what one client may take from the others: memory for halves of frames and properties, lists, turns."""

from typing import Final

from tests.mutants.catalogue import Mutant

_UNFINISHED: Final = ("tests/unit/magnetar_core/bookkeeper/wire/test_unfinished.py",)
_LISTINGS: Final = ("tests/unit/bookie/serving/test_listings.py",)
_HALVES: Final = ("tests/unit/bookie/serving/test_back_pressure.py", "-k", "half_frames or nothing_comes")
_ARRIVALS: Final = ("tests/unit/broker/test_arrivals.py",)
_DOORS: Final = ("tests/unit/broker/admin/test_odd_names.py", "-k", "in_a_turn_of_its_client")
_PERIODIC: Final = ("tests/unit/broker/test_broker.py", "-k", "periodic_work_leaves")
_PROPERTIES: Final = ("tests/unit/broker/topic/clients/test_properties.py",)
_MESSAGES: Final = ("tests/unit/broker/test_broker.py", "-k", "so_many_properties")
_METADATA: Final = ("tests/unit/managed_ledger/test_messages.py", "-k", "metadata or looked_through")
_FLOW: Final = ("tests/unit/broker/binary/test_flow.py",)
_STRANGERS: Final = ("tests/unit/broker/test_security.py", "-k", "frames_of_the_unauthenticated")
_PASSING: Final = ("tests/unit/broker/test_non_persistent.py", "-k", "periodic")
_UNWORKED: Final = ("tests/unit/broker/binary/test_loop_share.py", "-k", "each_source or a_sum")
_STREAMS: Final = ("tests/unit/test_limits_overflow.py", "-k", "publish_call")
_REQUESTS: Final = ("tests/unit/broker/grpc/test_requests.py",)

_HELD: Final = ("tests/unit/broker/test_policies_in_force.py",)
_LOOP_SHARE: Final = ("tests/unit/broker/binary/test_loop_share.py",)
_POSITIONS: Final = ("tests/unit/managed_ledger/test_positions.py",)
_ACTIVE: Final = ("tests/unit/broker/topic/test_active.py",)
_COMPACTION: Final = ("tests/unit/broker/topic/compaction/test_latest_keys.py",)
_SHOWN: Final = ("tests/unit/broker/admin/topics/test_messages.py", "-k", "unpacked_on_other_threads")

MUTANTS: Final = (
    # -- what is set aside since the rate of its topic is used up
    Mutant(
        "a topic that takes nothing for a while stops the other topics of the connection",
        "broker/binary/producers.py",
        "            self._held.hold(topic, hold)\n",
        "            self._flow.hold(hold)\n",
        _HELD,
    ),
    Mutant(
        "a producer is closed before what it has sent is stored",
        "broker/binary/producers.py",
        "            if self._held and producer.topic in self._held:\n"
        "                self._held.add(producer, request.request_id)\n"
        "            else:\n                self._close(producer, request.request_id)\n",
        "            self._close(producer, request.request_id)\n",
        _HELD,
    ),
    Mutant(
        "what a producer sends again is stored twice",
        "broker/binary/producers.py",
        "        self._held.forget(producer)\n",
        "",
        _HELD,
    ),
    Mutant(
        "what is set aside has no limit",
        "broker/binary/held_sends.py",
        "        if self._count > HELD_MAX or self._bytes > HELD_BYTES_MAX or all_of_them.is_full:  # rule 2\n",
        "        if self._count < 0:\n",
        _HELD,
    ),
    Mutant(
        "what comes while messages go on overtakes those that are left",
        "broker/binary/held_sends.py",
        "        while held.items and not held.holds and self._count > last:\n",
        "        while held.items and self._count > last:\n",
        _HELD,
    ),
    Mutant(
        "all that was set aside goes on in one turn",
        "broker/binary/held_sends.py",
        " and self._count > last:\n",
        ":\n",
        _HELD,
    ),
    # -- turns of the loop
    Mutant(
        "a connection works on all that it has read",
        "broker/binary/connection.py",
        "(self._steps is not None and not self._go_on(is_over)) or is_over():",
        "(self._steps is not None and not self._go_on(is_over)):",
        _LOOP_SHARE,
    ),
    Mutant(
        "a command begins before the one in front of it is done",
        "broker/binary/connection.py",
        "            if self._steps is not None and not self._go_on(is_over):\n                return 0\n",
        "",
        _LOOP_SHARE,
    ),
    Mutant(
        "who has more to do comes before the others",
        "broker/binary/loop_share.py",
        "        self._waiting.append(work)\n",
        "        self._waiting.appendleft(work)\n",
        _LOOP_SHARE,
    ),
    Mutant(
        "all connections work in one turn",
        "broker/binary/loop_share.py",
        "        elif now_s >= self._turn_ends_s or self._tasks >= TASKS_PER_TURN:\n            return False\n",
        "",
        _LOOP_SHARE,
    ),
    Mutant(
        "a chunk that waits is passed by the next one",
        "broker/binary/server.py",
        "        if self._is_working or self._chunks or not self._server.share.begin_slice():\n",
        "        if not self._server.share.begin_slice():\n",
        _LOOP_SHARE,
    ),
    Mutant(
        "a large ack is applied in one step",
        "broker/binary/consumers.py",
        "        if weight >= ACK_IDS_PER_STEP:\n",
        "        if False:\n",
        _LOOP_SHARE,
    ),
    Mutant(
        "a large ack is applied up to what is wrong in it",
        "broker/binary/consumers.py",
        "        refusal = self._acknowledge(ack, only_check=True)\n",
        "        refusal = None\n",
        _LOOP_SHARE,
    ),
    Mutant(
        "all consumers of a lost connection leave in one turn",
        "broker/binary/server.py",
        "            for _ in steps:\n                if share.is_over():\n",
        "            for _ in steps:\n                if False:\n",
        _LOOP_SHARE,
    ),
    Mutant(
        "who wants the place of one that has to leave is refused",
        "broker/binary/server.py",
        "        if self._is_closing:\n            await self._until_left()\n            return False\n",
        "        if self._is_closing:\n            return False\n",
        _LOOP_SHARE,
    ),
    Mutant(
        "each acknowledgement looks at all parts of batches",
        "managed_ledger/cursors/cursor.py",
        "        if self._order and self._order[0] <= position:\n",
        "        if any(known <= position for known in self._order):\n",
        _POSITIONS,
    ),
    Mutant(
        "a run of parts of batches is dropped but for its last",
        "managed_ledger/cursors/cursor.py",
        "bisect_left(self._order, first), bisect_right(self._order, last)",
        "bisect_left(self._order, first), bisect_left(self._order, last)",
        _POSITIONS,
    ),
    Mutant(
        "of consumers at one place of the ring the first is active",
        "broker/topic/dispatchers/active.py",
        '(priority, distance + 1, "", 0)) - 1][3]]',
        '(priority, distance, "", 0))][3]]',
        _ACTIVE,
    ),
    Mutant(
        "consumers of all priorities count at a partition",
        "broker/topic/dispatchers/active.py",
        "        return self.all[self._partition % best]\n",
        "        return self.all[self._partition % len(self.all)]\n",
        _ACTIVE,
    ),
    # -- compaction, and messages that are shown
    Mutant(
        "a compaction remembers any number of keys",
        "broker/topic/compaction/latest_keys.py",
        "        if self.bytes > self._bytes_max:\n",
        "        if False:\n",
        _COMPACTION,
    ),
    Mutant(
        "the memory of keys that are removed is not given back",
        "broker/topic/compaction/latest_keys.py",
        "  # rule 1\n            self.bytes -= _cost(key)\n",
        "  # rule 1\n            pass\n",
        _COMPACTION,
    ),
    Mutant(
        "messages are read for all who ask at once",
        "broker/admin/topics/messages.py",
        "            async with self._unpacking:\n                entry = await reading\n",
        "            entry = await reading\n            async with self._unpacking:\n",
        _SHOWN,
    ),
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
        "min(self._waiting, key=lambda waiting: self._frames[waiting].bytes)",
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
        "        callbacks = self._lists.pop(ledger_id)\n",
        "        waiting = self._lists[ledger_id]\n        callbacks = [waiting.pop(0)]\n"
        "        if not waiting:\n            del self._lists[ledger_id]\n",
        _LISTINGS,
    ),
    Mutant(
        "a list lacks what the cache has and the index has not",
        "bookie/serving/listings.py",
        "sorted({*ahead[bisect_left(ahead, first) :], *stored_ids})",
        "stored_ids",
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
        "            while at < len(callbacks) and self._may_start():\n",
        "            while at < len(callbacks):\n",
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
        "        number = state.round = max(state.round, self._round) + 1\n",
        "        number = state.round = 1\n",
        _ARRIVALS,
    ),
    Mutant(
        "a source that was away catches up",
        "broker/arrivals.py",
        "max(state.round, self._round) + 1",
        "state.round + 1",
        _ARRIVALS,
    ),
    Mutant(
        "topics are made all at once",
        "broker/serving/opening.py",
        "        async with self._arrivals.making():\n            await self._creation.check_new(name)\n            #",
        "        async with contextlib.nullcontext():\n            await self._creation.check_new(name)\n            #",
        _ARRIVALS,
    ),
    Mutant(
        "topics that are there wait for those that are made",
        "broker/serving/opening.py",
        "                return await self._load(name, policies, create=False)\n        if not await self._may_make",
        "                async with self._arrivals.making():\n"
        "                    return await self._load(name, policies, create=False)\n"
        "        if not await self._may_make",
        _ARRIVALS,
    ),
    Mutant(
        "a topic is made whose bundle went while it waited",
        "broker/serving/opening.py",
        "            await self._check_owned(name)\n            if name.is_persistent:\n",
        "            if name.is_persistent:\n",
        _ARRIVALS,
    ),
    Mutant(
        "the broker itself waits for its clients",
        "broker/binary/connection.py",
        "        if not self._is_own:\n",
        "        if self._is_own is not None:\n",
        _ARRIVALS,
    ),
    Mutant(
        "what is made over HTTP is made for the broker itself",
        "broker/admin/rights.py",
        '        arrivals.work_for(caller_of(request).source(request.remote or "a client"))\n',
        "",
        _DOORS,
    ),
    Mutant(
        "partitions are made all at once",
        "broker/tenancy/partitions.py",
        "            async with self._turn():\n                try:\n",
        "            async with nullcontext():\n                try:\n",
        _DOORS,
    ),
    Mutant(
        "periodic work looks at all topics in one turn",
        "broker/serving/open_topics.py",
        "        if not number % TOPICS_PER_TURN:\n            await asyncio.sleep(0)\n",
        "",
        _PERIODIC,
    ),
    Mutant(
        "periodic work goes on with topics that were closed meanwhile",
        "broker/serving/open_topics.py",
        "        if topics.get(name) is topic:  # else it was closed meanwhile, and maybe opened anew\n",
        "        if name == topic.name:\n",
        _PERIODIC,
    ),
    # -- properties
    Mutant(
        "properties count for ever",
        "broker/topic/clients/properties.py",
        "        self._kept.change(-self._counted_bytes)\n",
        "        self._kept.change(0)\n",
        _PROPERTIES,
    ),
    Mutant(
        "properties of all clients have no sum",
        "broker/topic/clients/properties.py",
        "            self.of_all.check_room(size_bytes, what)\n",
        "            pass\n",
        _PROPERTIES,
    ),
    Mutant(
        "a producer may tell anything of itself",
        "broker/binary/producers.py",
        "            check_size(request.metadata, _producer_label(request))\n",
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
        "magnetar_core/topics/metadata.py",
        "                if tag in keys and size > KEY_BYTES_MAX:\n",
        "                if not keys and size > KEY_BYTES_MAX:\n",
        _MESSAGES,
    ),
    Mutant(
        "metadata are decoded for any number of properties",
        "managed_ledger/messages.py",
        "    if (problem := metadata_problem(parts)) is not None:\n        raise Corruption(problem)\n",
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
    Mutant(
        "who is not authenticated waits with any number of bytes",
        "broker/binary/server.py",
        "        if held_bytes <= HANDSHAKE_FRAME_BYTES:\n            return False\n",
        "        return False\n",
        ("tests/unit/broker/test_security.py", "-k", "more_than_connect"),
    ),
    Mutant(
        "what the connections of a client bring has no sum",
        "broker/binary/loop_share.py",
        "        self._update_fullness(source, held_bytes, UNWORKED_BYTES_MAX)\n",
        "",
        _UNWORKED,
    ),
    Mutant(
        "what all connections bring together has no sum",
        "broker/binary/loop_share.py",
        "        return source in self._full or None in self._full\n",
        "        return source in self._full\n",
        _UNWORKED,
    ),
    Mutant(
        "who does not take its answers stops its other connections",
        "broker/binary/server.py",
        " or not self._may_read or self._is_closing:\n            held_bytes = 0\n",
        " or self._is_closing:\n            held_bytes = 0\n",
        _UNWORKED,
    ),
    Mutant(
        "the rates of all non-persistent topics are taken in one turn",
        "broker/serving/non_persistent_topics.py",
        "        async for topic in in_turns(self.by_name):\n            topic.take_rates(now_ms)\n",
        "        for topic in list(self.by_name.values()):\n            topic.take_rates(now_ms)\n",
        _PASSING,
    ),
    Mutant(
        "subscriptions are made in any number at once",
        "broker/topic/subscriptions.py",
        "            async with self._making():\n                check_open()\n",
        "            if True:\n                check_open()\n",
        _ARRIVALS,
    ),
    Mutant(
        "a subscription that waited gets a cursor in a topic that is closed",
        "broker/topic/subscriptions.py",
        "            async with self._making():\n                check_open()\n",
        "            async with self._making():\n",
        _ARRIVALS,
    ),
    # -- requests over gRPC
    Mutant(
        "a role has any number of streams",
        "broker/grpc/requests.py",
        "        if self._streams[source] >= streams_max:\n",
        "        if self._streams[source] < 0:\n",
        _REQUESTS,
    ),
    Mutant(
        "the first request of a Publish call too many is read",
        "broker/grpc/publish.py",
        "        with self._requests.stream(source):\n            await self._serve(call, source)\n",
        "        await self._serve(call, source)\n",
        _REQUESTS,
    ),
    Mutant(
        "the first request of a Publish call is read whoever sends it",
        "broker/grpc/publish.py",
        "        request = await self._requests.of_role(call, source)\n",
        "        request = await call.read()\n",
        _REQUESTS,
    ),
    Mutant(
        "the Publish calls of one role take all memory",
        "broker/grpc/publishing/stream.py",
        "        if self.bytes > ROLE_SHARE * self.budget.limit_bytes:\n            self.is_full = True\n",
        "",
        _STREAMS,
    ),
    Mutant(
        "a Publish call with nothing under way is read although memory is used up",
        "broker/grpc/publishing/stream.py",
        "        if self._has_turn or not (budget.is_full or",
        "        if self._has_turn or not ((budget.is_full and self.bytes) or",
        _STREAMS,
    ),
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
        "                message = await _guard(read, context, context, self._broker.doors)\n",
        "                message = await _guard(read, context, context)\n",
        _REQUESTS,
    ),
)
