"""Seeded bugs of what goes on by itself under open producers and consumers of the topic API."""

from typing import Final

from tests.mutants.catalogue import Mutant

_CLIENT: Final = "tests/unit/magnetar/client"
_GROWING: Final = (f"{_CLIENT}/test_growing.py",)
_ACCESS: Final = (f"{_CLIENT}/test_access.py",)
_SEVERAL: Final = (f"{_CLIENT}/test_several.py",)
_RETRIES: Final = (f"{_CLIENT}/test_retries.py",)
_COUNTS: Final = ("tests/unit/broker/tenancy/test_partition_counts.py",)
_WATCHES: Final = ("tests/unit/broker/grpc/test_topic_watches.py",)
_WRITER: Final = ("tests/unit/broker/grpc/publishing/test_writer.py",)
_OVERFLOW: Final = "tests/unit/test_limits_overflow.py"
_WHOLE_BATCHES: Final = ("tests/unit/broker/grpc/test_whole_batches.py",)
_DROPPED: Final = (f"{_CLIENT}/test_ends.py", "-k", "dropped")

MUTANTS: Final = (
    # -- what one that reads may ask for
    Mutant(
        "a reader never comes to the end behind a batch that cannot be taken apart",
        "magnetar/client/consuming.py",
        "            return _end_of(self.position) < last\n",
        "            return self.position < last\n",
        _WHOLE_BATCHES,
    ),
    Mutant(
        "an entry of which nothing is left hides those behind it",
        "broker/grpc/consume_call.py",
        "            if not answer.deliveries:  # so many",
        "            if unpacked is self._unpacked and not answer.deliveries:  # so many",
        _WHOLE_BATCHES,
    ),
    Mutant(
        "a Consume call is read although nobody reads its answers",
        "broker/grpc/consume_call.py",
        "            if self._answers > ANSWERS_MAX:\n                self.may_read.clear()\n",
        "",
        (_OVERFLOW, "-k", "reads_no_answers"),
    ),
    Mutant(
        "delayed nacks outlive their call",
        "broker/grpc/consume_call.py",
        "        for timer in self._nacks:\n            timer.cancel()\n",
        "",
        (_OVERFLOW, "-k", "delayed_nacks"),
    ),
    Mutant(
        "a frame that is being written counts nowhere",
        "broker/grpc/consume_call.py",
        "        self._count_frame(size)\n",
        "",
        ("tests/unit/broker/grpc/test_consuming.py",),
    ),
    Mutant(
        "batches that were acknowledged twice are kept for ever",
        "broker/grpc/partial.py",
        "            self._forget_some_done()\n",
        "",
        ("tests/unit/broker/grpc/test_partial.py",),
    ),
    Mutant(
        "a reader on its way to a time does not hear of new partitions",
        "magnetar/client/consuming.py",
        "                        self.hear_of_partitions(answer.partitions)\n                    if answer.HasField",
        "                        pass\n                    if answer.HasField",
        _GROWING,
    ),
    Mutant(
        "messages of a stream that broke stay in the queue",
        "magnetar/client/async_consumer.py",
        "            try:\n                del messages[-1 - kept]\n            except",
        "            try:\n                kept += 1\n            except",
        (f"{_CLIENT}/test_growing.py", "-k", "void"),
    ),
    Mutant(
        "a consumer whose subscription may not be created leaves its schema",
        "broker/broker.py",
        "        if opened is not None and durable_subscription:\n",
        "        if opened is not None and durable_subscription and False:\n",
        ("tests/unit/broker/test_policies_in_force.py", "-k", "leaves_no_schema"),
    ),
    # -- batches that clients encode
    Mutant(
        "a batch that was stored in part is stored again",
        "broker/grpc/publishing/writer.py",
        "        if old or not self._is_ordinary(count, size_bytes):\n",
        "        if not self._is_ordinary(count, size_bytes):\n",
        _WRITER,
    ),
    Mutant(
        "a batch overtakes the messages before it",
        "broker/grpc/publishing/writer.py",
        "for group in self._grouping.close_groups_before(lane) for send",
        "for group in () for send",
        _WRITER,
    ),
    Mutant(
        "a batch is stored whatever the rate says",
        "broker/grpc/publishing/writer.py",
        "        return room is None or (count <= room[0] and size_bytes <= room[1])\n",
        "        return True\n",
        _WRITER,
    ),
    Mutant(
        "a batch is stored although the topic takes none that is so large",
        "broker/grpc/publishing/writer.py",
        "        is_entry = entry_bytes <= min(limit or bytes_max, bytes_max)\n",
        "        is_entry = True\n",
        _WRITER,
    ),
    Mutant(
        "batches that a rate does not let in do not count in memory",
        "broker/grpc/publish.py",
        "            with stream.holding(request.ByteSize()):\n",
        "            with stream.holding(0):\n",
        ("tests/unit/broker/grpc/publishing/test_batches.py",),
    ),
    Mutant(
        "a client that reads no answers may send for ever what is refused",
        "broker/grpc/publishing/stream.py",
        "not (self._is_full or len(self.out) > ANSWERS_MAX)",
        "not self._is_full",
        ("tests/unit/test_limits_overflow.py",),
    ),
    Mutant(
        "a subscription whose consumers a seek disconnects is unused since the last of them came",
        "broker/topic/reading/subscription.py",
        "        if self.consumers:  # the first of them may have come months ago\n",
        "        if False:\n",
        ("tests/unit/broker/test_policies_in_force.py",),
    ),
    Mutant(
        "a client puts messages of several keys into a batch",
        "magnetar_core/topics/batch_encoding.py",
        "        if key_here != key:\n",
        "        if False:\n",
        ("tests/unit/magnetar_core/topics/test_batch_encoding.py",),
    ),
    Mutant(
        "a broker that knows no batches is sent some",
        "magnetar/client/publishing.py",
        "BatchLimits(opened.batch_messages_max, opened.batch_bytes_max)",
        "BatchLimits(1_000, 100_000)",
        ("tests/unit/broker/grpc/publishing/test_batches.py",),
    ),
    # -- topics that get more partitions
    Mutant(
        "a new partition is read from where the subscription began",
        "magnetar/client/async_consumer.py",
        "        if has_copies or is_new:\n",
        "        if has_copies:\n",
        _GROWING,
    ),
    Mutant(
        "a reader from an id goes on with new partitions from that id",
        "magnetar/client/async_consumer.py",
        '            opening.ClearField("start_id")\n',
        "",
        _GROWING,
    ),
    Mutant(
        "partitions that are new take more than the queue",
        "magnetar/client/consuming.py",
        "            self._granted += self._queue_size - queue_size\n",
        "",
        _GROWING,
    ),
    Mutant(
        "news of partitions that come while a producer is opened are forgotten",
        "magnetar/client/async_producer.py",
        "            self.streams = streams\n            self._add_partitions()\n",
        "            self.streams = streams\n",
        _GROWING,
    ),
    Mutant(
        "a producer uses new partitions before they are open",
        "magnetar/client/async_producer.py",
        "                await asyncio.gather(*(stream.until_connected() for stream in new))\n",
        "",
        _GROWING,
    ),
    Mutant(
        "a producer of one partition grows",
        "magnetar/client/async_producer.py",
        "        if TopicName.parse(self.topic).partition < 0:",
        "        if True:",
        _GROWING,
    ),
    Mutant(
        "a stream keeps the client that the program has dropped",
        "magnetar/client/async_consumer.py",
        "            stream.on_partitions = weakly(self._on_partitions)\n",
        "            stream.on_partitions = self._on_partitions\n",
        _DROPPED,
    ),
    Mutant(
        "a broker that hears of a partition late is not waited for",
        "magnetar/client/stream.py",
        "                    is_passing = asyncio.get_running_loop().time() < until_s\n",
        "                    is_passing = False\n",
        _GROWING,
    ),
    Mutant(
        "the end of a topic is asked of the partitions that were known before",
        "magnetar/client/async_consumer.py",
        "            stream.hear_of_partitions(answer.partitions)\n        stream.end",
        "            pass\n        stream.end",
        _GROWING,
    ),
    Mutant(
        "a change while a record is read is missed",
        "broker/tenancy/partition_counts.py",
        "                del self._due[base]  # what changes from now on may not be read\n"
        "                followed = self._followed.get(base)\n"
        "                if followed is not None:\n"
        "                    await self._read(base, followed)\n",
        "                followed = self._followed.get(base)\n"
        "                if followed is not None:\n"
        "                    await self._read(base, followed)\n"
        "                self._due.pop(base, None)\n",
        _COUNTS,
    ),
    # -- exclusive producers
    Mutant(
        "a producer that had exclusive access waits for it again behind others",
        "broker/grpc/publish.py",
        '        if writer.producer.is_waiting and request.HasField("topic_epoch"):  # rule 3\n',
        "        if False:\n",
        _ACCESS,
    ),
    Mutant(
        "access that is given while the client is told to wait is not told",
        "broker/grpc/publish.py",
        "        if opened.is_waiting:  # it may have",
        "        if self.writer.producer.is_waiting:  # it may have",
        _ACCESS,
    ),
    Mutant(
        "the former call of a producer is in its way",
        "broker/topic/publishing/producers.py",
        "        return holder is not None and is_known and holder.regroups and producer.regroups\n",
        "        return False\n",
        _ACCESS,
    ),
    Mutant(
        "who comes back does not say with which epoch",
        "magnetar/client/publishing.py",
        "            self._opening.topic_epoch = opened.topic_epoch\n",
        "            pass\n",
        _ACCESS,
    ),
    Mutant(
        "one that is fenced out of a partition keeps the others",
        "magnetar/client/async_producer.py",
        "                if other.failure is None:\n                    other.give_up(error)\n",
        "                pass\n",
        _ACCESS,
    ),
    Mutant(
        "partitions are taken all at once",
        "magnetar/client/async_producer.py",
        "in_order=self._is_exclusive",
        "in_order=False",
        _ACCESS,
    ),
    Mutant(
        "producers of one client share exclusive access",
        "magnetar/client/async_client.py",
        '        is_own = bool(name) or access != "shared"\n',
        "        is_own = bool(name)\n",
        _ACCESS,
    ),
    Mutant(
        "the close of a producer waits for its exclusive access",
        "magnetar/client/async_producer.py",
        "        self.stop_waiting()\n        try:\n",
        "        try:\n",
        _ACCESS,
    ),
    Mutant(
        "a producer that waits for access counts as one that writes",
        "broker/grpc/publish.py",
        "        writer.producer.is_waiting = not attached.ready\n",
        "        writer.producer.is_waiting = False\n",
        _ACCESS,
    ),
    Mutant(
        "a stream that is closed while it is opened again goes on",
        "magnetar/client/stream.py",
        "        if self._phase is Phase.OPENING:\n            self._phase = Phase.RUNNING\n",
        "        self._phase = Phase.RUNNING\n",
        (f"{_CLIENT}/test_ends.py", "-k", "opened_again"),
    ),
    # -- patterns
    Mutant(
        "a consumer of a pattern makes topics again that are deleted",
        "magnetar/client/async_consumer.py",
        "        opening.must_exist = follows\n",
        "",
        _SEVERAL,
    ),
    Mutant(
        "a topic that is made again at once is not read any more",
        "magnetar/client/stream.py",
        '                if error.code == "NOT_FOUND" and self.may_vanish:\n                    is_passing = True\n',
        "                if False:\n                    is_passing = True\n",
        _SEVERAL,
    ),
    Mutant(
        "topics that come while a pattern is opened are forgotten",
        "magnetar/client/async_consumer.py",
        "        self._on_topics(list(watch.topics), [topic for topic in streams if topic not in there])\n",
        "",
        _SEVERAL,
    ),
    Mutant(
        "a consumer of a pattern leaves its retry topic when it is open",
        "magnetar/client/async_consumer.py",
        "        there = {*watch.topics, *retry_topics}\n",
        "        there = {*watch.topics}\n",
        _RETRIES,
    ),
    Mutant(
        "retry topics are called by the topic that was given first",
        "magnetar/client/retries/retry.py",
        "TopicName.parse(min(topics)).full",
        "TopicName.parse(topics[0]).full",
        _RETRIES,
    ),
    Mutant(
        "what is under way at a topic that is deleted fails",
        "magnetar/client/consuming.py",
        "        if not self.may_vanish or self._phase is Phase.ENDING:\n",
        "        if True:\n",
        _SEVERAL,
    ),
    Mutant(
        "what was under way at a topic of a pattern that moved is never answered",
        "magnetar/client/consuming.py",
        "        doubtful, self._doubtful = self._doubtful, []\n",
        "        doubtful, self._doubtful = [], []\n",
        _SEVERAL,
    ),
    Mutant(
        "after a watch that broke off, topics that have gone stay",
        "magnetar/client/several/watch.py",
        "            self._apply(await self._joined(call, answer), {})\n",
        "            self._apply(await self._joined(call, answer), self.topics)\n",
        _SEVERAL,
    ),
    Mutant(
        "of a list that comes in several answers the first counts as the whole",
        "magnetar/client/several/watch.py",
        "        while last.more:\n",
        "        while False:\n",
        _SEVERAL,
    ),
    Mutant(
        "calls that watch the same are told of the first list again",
        "broker/binary/listing.py",
        "        if topics is not self._topics:\n",
        "        if self._topics is None:\n",
        _WATCHES,
    ),
    Mutant(
        "the name that does not fit into an answer is left out",
        "broker/grpc/topic_watches.py",
        "            (answer.new_topics if is_new else answer.deleted_topics).append(name)\n",
        "            else:\n                (answer.new_topics if is_new else answer.deleted_topics).append(name)\n",
        _WATCHES,
    ),
    Mutant(
        "who watches topics may go on when it may not list them any more",
        "broker/grpc/topic_watches.py",
        "                await self._check(call, watch.namespace)  # rule 2\n",
        "",
        _WATCHES,
    ),
    Mutant(
        "the names of watched lists are not given back",
        "broker/grpc/topic_watches.py",
        "            names.total -= counted\n",
        "",
        _WATCHES,
    ),
)
