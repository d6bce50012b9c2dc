"""Of topics: opening, policies, deletion, partitions."""

from tests.mutants.catalogue import Mutant
from tests.mutants.history.mended import Mended, catalogued

BROKER = ("tests/unit/broker/test_broker.py",)
POLICIES = ("tests/unit/broker/test_policies_in_force.py",)

MENDED = (
    Mended(
        "9bcafaa3",
        "A topic that nobody used was deleted although its retention was to keep its messages.",
        Mutant(
            "history: a topic that nobody uses is deleted whatever its retention says",
            "broker/topic/topic.py",
            "        if retained_ms < 0:  # its messages are to be kept, as in Apache's\n            return False\n",
            "        retained_ms = 0\n",
            POLICIES,
        ),
    ),
    Mended(
        "fcf85407",
        "A consumer that had everything kept a topic that was to go when all have caught up.",
        catalogued("a consumer that has everything keeps a topic that goes when all have caught up"),
    ),
    Mended(
        "ae6a3d10",
        "A non-persistent topic was opened by a broker that had given the bundle away meanwhile.",
        Mutant(
            "history: a topic is made whose bundle was given away while it waited",
            "broker/serving/opening.py",
            "            policies = await self._policies(name)\n            await self._check_owned(name)\n"
            "            if name.is_persistent:\n",
            "            policies = await self._policies(name)\n            if name.is_persistent:\n",
            ("tests/unit/broker/test_non_persistent.py",),
        ),
    ),
    Mended(
        "62a90627",
        "A consumer that finds out the schema kept the next one from bringing it to an unused topic.",
        Mutant(
            "history: a consumer that takes any schema counts as use of a topic",
            "broker/broker.py",
            "not consumer.takes_any_schema for subscription",
            "True for subscription",
            BROKER,
        ),
    ),
    Mended(
        "0584782d",
        "Changed policies of a namespace did not reach its topics behind one that was just being closed.",
        Mutant(
            "history: one topic that takes no policies keeps them from the others",
            "broker/serving/in_force.py",
            "                    except BrokerError as error:  # it may be ending just now; the others get "
            "them all the same\n"
            "                        failed += 1\n",
            "                    except BrokerError as error:\n                        raise\n",
            BROKER,
        ),
    ),
    Mended(
        "92e1b508",
        "Statistics of a topic that was being deleted made it again.",
        Mutant(
            "history: a call about a topic that is deleted makes it again",
            "broker/admin/owners.py",
            "        return await self._broker.opening.stored_topic(name)  # it may be deleted meanwhile\n",
            "        return await self._broker.opening.create_topic(name)\n",
            ("tests/unit/broker/admin/test_admin.py",),
        ),
    ),
    Mended(
        "2746080c",
        "A topic that was deleted and made again refused producers for the schema of its former life.",
        Mutant(
            "history: a deleted topic leaves its schema",
            "broker/serving/deleting.py",
            "        await topic.delete()\n        await self._forget_schema(topic.name)\n",
            "        await topic.delete()\n",
            POLICIES,
        ),
    ),
    Mended(
        "3875cc6c",
        "Subscriptions that are kept in step with other clusters expired here.",
        Mutant(
            "history: replicated subscriptions expire",
            "broker/topic/topic.py",
            "            if not subscription.is_durable or subscription.consumers or subscription.is_replicated:\n",
            "            if not subscription.is_durable or subscription.consumers:\n",
            POLICIES,
        ),
    ),
    Mended(
        "3f54bd61",
        "A compaction that ended after its topic was closed left a ledger that nothing names.",
        Mutant(
            "history: a compaction of a closed topic leaves its ledger",
            "broker/topic/compaction/compactor.py",
            "            if cursor.is_closed:  # the topic was closed meanwhile: nothing would name the ledger\n",
            "            if False:\n",
            ("tests/unit/broker/test_compacted_topics.py",),
        ),
    ),
    Mended(
        "33ef9c67",
        "After a truncation readers of what was compacted missed entries that compaction had not looked at.",
        Mutant(
            "history: a truncation takes the cursor of compaction to the end",
            "managed_ledger/ledger.py",
            "            cursor.mark_delete(present if cursor.name == COMPACTION_CURSOR else last)\n",
            "            cursor.mark_delete(last)\n",
            ("tests/unit/broker/test_compacted_topics.py",),
        ),
    ),
    Mended(
        "b980891b",
        "Messages that were published to new partitions before their subscriptions were there came to nobody.",
        Mutant(
            "history: a topic grows before its new partitions have their subscriptions",
            "broker/admin/topics/partitioned_topics.py",
            "            await self._partitioned.make_ahead(name, count)\n"
            "            await self._subscribe(map(name.with_partition, range(former_count, count)), subscriptions)\n"
            "        await self._partitioned.grow(name, count)\n",
            "            await self._partitioned.grow(name, count)\n"
            "            await self._subscribe(map(name.with_partition, range(former_count, count)), subscriptions)\n"
            "        await self._partitioned.grow(name, count)\n",
            ("tests/unit/broker/admin/test_admin.py",),
        ),
    ),
    Mended(
        "f834fe40",
        "Partitions that were added had no subscriptions: what was published before consumers came was lost to them.",
        Mutant(
            "history: new partitions have no subscriptions",
            "broker/admin/topics/partitioned_topics.py",
            "        if subscriptions:  # first: clients may come to a partition, and publish there, as soon "
            "as the record counts it"
            "\n",
            "        if False:\n",
            ("tests/unit/broker/admin/test_admin.py",),
        ),
    ),
    Mended(
        "db52f06e",
        "Policies of a topic that was deleted held again for a while when their system topic was read anew.",
        Mutant(
            "history: what a deleted system topic said still holds",
            "broker/policies/topic/service.py",
            "                    namespace.begin()  # it may have been deleted: what it said does not hold any more\n",
            "",
            ("tests/unit/broker/policies/topic/test_service.py",),
        ),
    ),
    Mended(
        "fbf837f2",
        "A topic that was opened while policies changed kept the old ones.",
        catalogued("what changes while a topic is being opened is not seen"),
    ),
    Mended(
        "e5b82816",
        "A topic that others opened meanwhile was opened twice: each had a part of the entries.",
        catalogued("a topic is opened twice"),
    ),
)
