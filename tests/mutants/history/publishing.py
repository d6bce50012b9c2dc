"""Of producers: what is stored, confirmed, and in which order; de-duplication; exclusive access."""

from tests.mutants.catalogue import Mutant
from tests.mutants.history.mended import Mended, catalogued

BROKER = ("tests/unit/broker/test_broker.py",)
POLICIES = ("tests/unit/broker/test_policies_in_force.py",)
PUBLISHING = ("tests/unit/broker/topic/publishing/test_publishing.py",)

MENDED = (
    Mended(
        "b768b0f7",
        "After an entry that storage refused, two messages had one index, or a broker's assertion failed.",
        Mutant(
            "history: the index of a refused entry goes to a later one",
            "broker/topic/topic.py",
            "            metadata.on_refused(pending.messages for pending in contexts)\n",
            "            pass\n",
            ("tests/unit/broker/test_safety.py",),
        ),
    ),
    Mended(
        "cab54e04",
        "A producer that was closed while its client's rights were asked for again was told that it is there.",
        Mutant(
            "history: a producer that was closed while it was made counts as made",
            "broker/binary/producers.py",
            "        if producer.is_closed:  # the client did not know it yet when it was told of the close\n",
            "        if False:\n",
            ("tests/unit/broker/security/test_access.py",),
        ),
    ),
    Mended(
        "2d9a9696",
        "A client that closed its producer while the topic was lost waited for the answer for ever.",
        Mutant(
            "history: a producer that is closing is disconnected like any other",
            "broker/topic/publishing/producers.py",
            "        if producer.closing is not None:  # its client asks for just that; what is not answered "
            "will not be\n"
            "            self._finish_close(producer)\n            return\n",
            "",
            BROKER,
        ),
    ),
    Mended(
        "886f4f27",
        "A producer's name stayed taken for as long as the keep-alive of its dead client's connection.",
        Mutant(
            "history: the connection of a namesake is not asked whether it lives",
            "broker/topic/topic.py",
            "        await producers.probe_producer_of_same_name(producer)\n",
            "",
            BROKER,
        ),
    ),
    Mended(
        "913d5b66",
        "Producers that do not encrypt stayed when their namespace began to require it.",
        Mutant(
            "history: producers that do not encrypt stay",
            "broker/topic/topic.py",
            "                await in_turns(by_turns(self._producers.require_encryption()))\n",
            "                pass\n",
            POLICIES,
        ),
    ),
    Mended(
        "d4249c6c",
        "Messages in clear were stored where encryption is required, if their producer had said that it encrypts.",
        Mutant(
            "history: messages in clear are stored where encryption is required",
            "broker/topic/topic.py",
            "            run = encrypted(run)\n",
            "            pass\n",
            POLICIES,
        ),
    ),
    Mended(
        "ebcf9e76",
        "After a topic was truncated, a producer's message could be stored twice: its sequence ids were forgotten.",
        Mutant(
            "history: a truncation does not store the sequence ids",
            "broker/topic/topic.py",
            "        self.snapshot_deduplication()  # its cursor goes to the end as well: nothing before it is "
            "replayed any more\n",
            "",
            POLICIES,
        ),
    ),
    Mended(
        "0b7c1623",
        "A message that was too large and came again was confirmed, and stored nowhere.",
        Mutant(
            "history: a message that was refused as too large is a duplicate when it comes again",
            "broker/topic/publishing/deduplication.py",
            "        if (producer, highest) in self._refused:  # rule 5\n",
            "        if False:\n",
            PUBLISHING,
        ),
    ),
    Mended(
        "df2601a6",
        "A message that was refused as too large and came again could come only once more, whatever storage said.",
        Mutant(
            "history: a refused message that is in flight again stays so after a failure",
            "broker/topic/publishing/deduplication.py",
            "        self._refused = dict.fromkeys(self._refused, False)\n",
            "",
            PUBLISHING,
        ),
    ),
    Mended(
        "4e4af0ac",
        "A publish rate did not hold for what one read of a socket brought: thousands of small messages.",
        catalogued("what one read of a socket has brought is stored whatever the rate says"),
    ),
    Mended(
        "4e07f43a",
        "A producer that waited for exclusive access waited for ever after an unload.",
        catalogued("who waits for exclusive access is forgotten by an unload"),
    ),
    Mended(
        "4e07f43a",
        "A producer that waited for exclusive access was told of an unload by a command that clients do not hear then.",
        catalogued("who waits for exclusive access is told of an unload by a command that clients do not hear then"),
    ),
    Mended(
        "cdd3d8cf",
        "A producer that asked again was told what was stored when it asked first, and sent messages twice.",
        catalogued("a repeated request for a producer is answered with what was stored at the first one"),
    ),
    Mended(
        "cdd3d8cf",
        "A producer that asked again while it waited for exclusive access was answered by its first request only.",
        catalogued("a producer that waits is answered by its first request"),
    ),
    Mended(
        "cdd3d8cf",
        "Clients were told of the close of a producer that they did not know yet.",
        catalogued("a client is told that a producer is closed which it does not know yet"),
    ),
)
