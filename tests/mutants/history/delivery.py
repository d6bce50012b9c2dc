"""Of subscriptions: what consumers get, acknowledge, and wait for."""

from tests.mutants.catalogue import Mutant
from tests.mutants.history.mended import Mended, catalogued

DISPATCH = ("tests/unit/broker/topic/test_dispatch.py",)
ACKING = ("tests/unit/broker/topic/reading/test_acking.py",)
BROKER = ("tests/unit/broker/test_broker.py",)
POLICIES = ("tests/unit/broker/test_policies_in_force.py",)

MENDED = (
    Mended(
        "34a1b906",
        "A consumer that asked again, on a connection that stayed, held messages that its client did not have.",
        catalogued("a consumer that subscribes once more does not get again what it holds"),
    ),
    Mended(
        "34a1b906",
        "A client that subscribed again got more messages than its queue takes.",
        catalogued("a consumer that subscribes once more keeps its permits"),
    ),
    Mended(
        "ab63e4a9",
        "Messages of a batch whose parts cannot be kept did not come again when their consumer left.",
        Mutant(
            "history: a batch of which no part can be kept leaves its consumer",
            "broker/topic/reading/acking.py",
            "                if left_words is not None or cursor.is_deleted(position):\n",
            "                if True:\n",
            ACKING,
        ),
    ),
    Mended(
        "fb385977",
        "Consumers that waited at a limit of unacknowledged messages stood still when it was raised or removed.",
        Mutant(
            "history: a changed limit of unacknowledged messages is not looked at",
            "broker/topic/reading/pump.py",
            "            self.dispatcher.use_limits(limits)\n",
            "            self.dispatcher.limits = limits\n",
            DISPATCH,
        ),
    ),
    Mended(
        "10160a17",
        "A cumulative acknowledgement inside a batch acknowledged nothing where parts of batches are not kept.",
        Mutant(
            "history: a cumulative ack inside a batch is nothing without parts of batches",
            "broker/topic/reading/acking.py",
            "            self._pump.cursor.mark_delete(_position_before(self._ledger.ledgers, position))\n",
            "            if not self.keeps_parts:\n                return\n"
            "            self._pump.cursor.mark_delete(_position_before(self._ledger.ledgers, position))\n",
            ACKING,
        ),
    ),
    Mended(
        "721ad785",
        "Consumers waited as long as an old rate of dispatching said, maybe for hours, after it was raised.",
        Mutant(
            "history: the pumps run before the new rates are there",
            "broker/topic/subscriptions.py",
            "        self._use_rates()  # before the pumps below: what waits for an old rate has a timer that "
            "may be hours away"
            "\n        for subscription in self.by_name.values():\n"
            "            subscription.pump.use_limits(limits.dispatch)\n",
            "        for subscription in self.by_name.values():\n"
            "            subscription.pump.use_limits(limits.dispatch)\n"
            "        self._use_rates()\n",
            POLICIES,
        ),
    ),
    Mended(
        "be11b295",
        "A rate of dispatching relative to what is published was only its own number.",
        Mutant(
            "history: the published rate does not reach relative rates",
            "broker/topic/subscriptions.py",
            "        self._published = published\n        if self._limits.dispatch_rate.is_relative:\n",
            "        if False:\n",
            POLICIES,
        ),
    ),
    Mended(
        "cab54e04",
        "A consumer that was closed while its client's rights were asked for again was told that it is there.",
        Mutant(
            "history: a consumer that was closed while it was made counts as made",
            "broker/binary/consumers.py",
            "        if consumer not in subscription.consumers:  # the client did not know it yet when it was "
            "told of the close\n"
            '            raise NotReady(f"The consumer was closed while it was made; look {name} up again")\n',
            "",
            ("tests/unit/broker/security/test_access.py",),
        ),
    ),
    Mended(
        "29c4ab9a",
        "A consumer whose subscription could not be removed waited for messages for ever.",
        Mutant(
            "history: a consumer whose subscription stays is not told that it is detached",
            "broker/binary/consumers.py",
            "            self._close_if_detached(consumer)  # now: while a client waits for the answer it does "
            "not reconnect\n",
            "",
            BROKER,
        ),
    ),
    Mended(
        "a3060b64",
        "Keys that were read while their subscription was blocked did not go out when it was not.",
        catalogued("keys that were read while their subscription was blocked are not looked for"),
    ),
    Mended(
        "3387664c",
        "A consumer was there again before its client heard that the seek is done, and was closed by it.",
        catalogued("a consumer is there again before its client hears that the seek is done"),
    ),
    Mended(
        "cc52460b",
        "A seek took as long as the pause after a failed read, half a minute.",
        catalogued("a seek waits for the pause of a failed read"),
    ),
    Mended(
        "cdd3d8cf",
        "A consumer that subscribed while it unsubscribed was told that it is there, and got nothing.",
        catalogued("who subscribes while it unsubscribes is told that it has a consumer"),
    ),
    Mended(
        "cdd3d8cf",
        "A client that waits for the answer to an acknowledgement waited for ever when its consumer was closed.",
        catalogued("an acknowledgement whose consumer was closed is not answered"),
    ),
    Mended(
        "a26277f1",
        "Chunks of one message went to different consumers of a Shared subscription: nobody could put it together.",
        catalogued("chunks go to the consumers in turn"),
    ),
    Mended(
        "a26277f1",
        "A subscription beyond its limit stood still with chunks of a message that could not be completed.",
        catalogued("limits of a subscription stop within a message"),
    ),
    Mended(
        "9df38b98",
        "Messages whose producers' clocks were ahead did not expire, and kept their ledgers.",
        catalogued("what producers date ahead never expires"),
    ),
    Mended(
        "5006353f",
        "Messages that were read when a subscription was rewound, and not handed over yet, came before earlier ones.",
        Mutant(
            "history: entries that a rewind overtook are handed over",
            "broker/topic/reading/pump.py",
            "        return read.first is None and bool(entries) and self.cursor.read_position <= "
            "entries[-1].position\n",
            "        return False\n",
            ("tests/simulation/test_delivery_sim.py",),
        ),
    ),
    Mended(
        "fb812af9",
        "A consumer of Go's client that was closed right after it was made waited for messages for ever.",
        Mutant(
            "history: permits of a consumer that was closed early are for nobody",
            "broker/binary/consumers.py",
            "        elif consumer_id in self._closed_early and self._closed_early[consumer_id] is None:  # rule 2\n",
            "        elif False:\n",
            BROKER,
        ),
    ),
    Mended(
        "de48b4b9",
        "A subscription that ended stayed in memory until the garbage collector came, with all that it had read.",
        Mutant(
            "history: a subscription that ends is kept alive by the broker's count",
            "broker/topic/unacked.py",
            "        self.clear()\n        self._budget, self._resume = UnackedBudget(), _nothing\n",
            "        self.clear()\n",
            ("tests/unit/broker/topic/test_unacked.py",),
        ),
    ),
    Mended(
        "4a03025c",
        "A seek that took long was a success although another broker had the topic, and nothing of it was kept.",
        catalogued("a seek that took long is a success although another broker has the topic"),
    ),
)
