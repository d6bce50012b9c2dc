"""Of the topic API: its calls at brokers, and its client."""

from tests.mutants.catalogue import Mutant
from tests.mutants.history.mended import Mended

CALLS = ("tests/unit/broker/grpc/test_client_calls.py",)
SERVICE = ("tests/unit/broker/grpc/test_service.py",)

MENDED = (
    Mended(
        "f5072a6d",
        "A message that a topic's policies forbid ended the calls of all clients that share its producer.",
        Mutant(
            "history: a message that is not allowed ends the producer",
            "broker/grpc/publishing/writer.py",
            "        if not isinstance(error, NotAllowed):\n            self._lose(error)\n",
            "        if True:\n            self._lose(error)\n",
            SERVICE,
        ),
    ),
    Mended(
        "327ec802",
        "CreateTopic made a ledger for the name of a non-persistent topic.",
        Mutant(
            "history: a ledger is made for a non-persistent topic",
            "broker/grpc/service.py",
            "        if not name.is_persistent:\n            raise NotAllowed(",
            "        if False:\n            raise NotAllowed(",
            SERVICE,
        ),
    ),
    Mended(
        "c97c4826",
        "A consumer whose opening was cut off left a stream behind that held its subscription.",
        Mutant(
            "history: an opening that is cut off leaves its streams",
            "magnetar/client/stream.py",
            "    except BaseException:\n        await asyncio.gather(*(stream.close() for stream in "
            "streams))\n        raise\n",
            "    except TopicError:\n        await asyncio.gather(*(stream.close() for stream in streams))\n   "
            "     raise\n",
            CALLS,
        ),
    ),
    Mended(
        "a6620e1f",
        "Messages of one producer came in another order than they were sent in, while it was being opened.",
        Mutant(
            "history: calls pass those that wait until the producer is open",
            "magnetar/client/async_producer.py",
            "        if not self.streams or self._arriving or self._is_closed:\n            async with "
            "self._in_turn(deadline):\n"
            "                pass\n",
            "        if not self.streams or self._is_closed:\n            async with self._in_turn(deadline):\n"
            "                pass\n",
            CALLS,
        ),
    ),
    Mended(
        "a6620e1f",
        "Messages of one producer came in another order than they were sent in, after waiting for room.",
        Mutant(
            "history: calls pass those that wait for room",
            "magnetar/client/publishing.py",
            "        if self._waiting or not self._room.is_set():\n",
            "        if not self._room.is_set():\n",
            CALLS,
        ),
    ),
    Mended(
        "73b2f38b",
        "Messages of one producer were in another order where only one partition of a send_many had room.",
        Mutant(
            "history: a send_many into several partitions does not wait for its turn",
            "magnetar/client/async_producer.py",
            "            async with self._in_turn(deadline):\n                if len(self.streams) > 1:\n",
            "            async with self._in_turn(deadline):\n                pass\n            if True:\n"
            "                if len(self.streams) > 1:\n",
            CALLS,
        ),
    ),
    Mended(
        "c77f3c9e",
        "A consumer of the topic API whose subscription could not be removed waited for messages for ever.",
        Mutant(
            "history: a consumer of the topic API is not told that it is detached",
            "broker/grpc/consume_call.py",
            "                if self.consumer not in self.subscription.consumers:  # it would wait for "
            "messages for ever\n",
            "                if False:\n",
            ("tests/unit/broker/grpc/test_consuming.py",),
        ),
    ),
    Mended(
        "7eb1baf6",
        "A broker's memory grew with the number of topics that ever had a schema.",
        Mutant(
            "history: the lock of each schema is kept",
            "managed_ledger/schemas/registry.py",
            "        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()\n",
            "        self._locks: dict[str, asyncio.Lock] = {}\n",
            ("tests/unit/managed_ledger/schemas/test_registry.py",),
        ),
    ),
)
