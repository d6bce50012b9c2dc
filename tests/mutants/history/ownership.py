"""Of bundles: who serves a topic, takeovers, splits, unloads."""

from tests.mutants.catalogue import Mutant
from tests.mutants.history.mended import Mended, catalogued

OWNERSHIP = ("tests/unit/broker/ownership/test_ownership.py",)

MENDED = (
    Mended(
        "a009bc13",
        "A bundle stayed with its owner, and others waited for it, when the answer to its announcement was lost.",
        Mutant(
            "history: an unload ends where the answer to its announcement is lost",
            "broker/ownership/keeping.py",
            "        with contextlib.suppress(OutcomeUnknown):  # stored or not, going on is right: where it "
            "is, others wait\n",
            "        if True:\n",
            OWNERSHIP,
        ),
    ),
    Mended(
        "3c5018a3",
        "A bundle whose session ended while it was taken was served without a node: two brokers had it.",
        catalogued("a bundle whose session ended while it was taken is ours without a node"),
    ),
    Mended(
        "f032d67d",
        "Each end of a session closed all topics of a broker.",
        catalogued("what was owned in a session that has ended is not taken up again"),
    ),
    Mended(
        "6b97c940",
        "A bundle that another broker had split meanwhile was served again as a whole.",
        catalogued("a bundle that was split by another broker meanwhile is taken up again"),
    ),
    Mended(
        "6b97c940",
        "A split of which nobody knew whether it is stored was taken back: topics had no owner.",
        catalogued("a split of which nobody knows whether it is stored is taken back"),
    ),
    Mended(
        "6b97c940",
        "A node was made for a bundle that was cut meanwhile, and stayed.",
        catalogued("a node is made for a bundle that was cut meanwhile"),
    ),
    Mended(
        "6b97c940",
        "Brokers took older bundles for those that a split had made.",
        catalogued("older bundles are taken for those that a split has made"),
    ),
    Mended(
        "6b97c940",
        "The node of a bundle that does not exist stayed where it could not be removed at once.",
        catalogued("the node of a bundle that does not exist stays if it cannot be removed at once"),
    ),
    Mended(
        "815f8cb2",
        "A broker that was started again removed the node of another one that had just taken the bundle.",
        Mutant(
            "history: the node of an earlier life is removed as it was read",
            "broker/ownership/keeping.py",
            "            if entry.phase is Phase.AWAY and await self._entries.owner_node(entry.name) == node:\n",
            "            if entry.phase is Phase.AWAY:\n",
            ("tests/simulation/test_ownership_sim.py",),
        ),
    ),
    Mended(
        "2a759071",
        "A client that came while its bundle was being taken was sent away.",
        catalogued("a client that comes while its bundle is being taken is sent away"),
    ),
    Mended(
        "839c4ab8",
        "A broker that was slow to answer once was taken for dead, and its topics were prepared elsewhere.",
        catalogued("a broker that hangs is taken for dead the first time"),
    ),
)
