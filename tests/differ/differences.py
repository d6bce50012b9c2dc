"""What our broker does otherwise than Apache's in drawn programs, and is meant to, with the reasons.

A difference has the words of its event, of which a few say what it is about, and what either side's outcome has to
show. What comes behind a listed difference in a program is not compared: it may follow from it.
"""

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tests.differ.events import Event, Program
from tests.differ.normal import Difference
from tests.support.mixed_cluster import LINE


class Listed(NamedTuple):
    """*what* is a regular expression for the event's line, *is_it* looks at the outcomes: Apache's, ours."""

    name: str
    what: str
    reason: str
    is_it: Callable[[Program, Difference], bool] = lambda program, difference: True


def _after(program: Program, difference: Difference, what: str) -> bool:
    """Whether such an event comes before."""
    return any(re.search(what, str(one)) for one in program[: difference.at])


def _outcomes(apache: Any, ours: Any) -> Callable[[Program, Difference], bool]:
    return lambda _, found: (found.apache, found.ours) == (apache, ours)


def _is_new(program: Program, peek: Event) -> bool:
    """Whether nobody made the subscription that is looked at."""
    topic, _, name = peek.who.partition("/")
    before = program[: program.index(peek)]
    return not any(
        (one.what == "subscribe" and (one.get("topic"), one.get("subscription")) == (topic, name))
        or (one.what == "make" and one.who == peek.who)
        for one in before
    )


def _are_other_producers(found: Difference) -> bool:
    if isinstance(found.apache, dict) and isinstance(found.ours, dict):
        return all(found.ours[name] == value for name, value in found.apache.items() if name != "publishers")
    return found.event.what != "stats" and found.ours in ("ProducerBusy", "ProducerFenced", 412)


def _differ_in_redeliveries(found: Difference) -> bool:
    """Whether the same messages came, and ours counted one redelivery more of some."""

    def numbers(answer: Any) -> list[tuple[Any, ...]]:
        return [tuple(one[1:3]) for one in answer if isinstance(one, list)]

    def counts(answer: Any) -> list[int]:
        return [one[3] for one in answer if isinstance(one, list)]

    if not (isinstance(found.apache, list) and isinstance(found.ours, list)):
        return False
    if numbers(found.apache) != numbers(found.ours):
        return False
    return all(0 <= own - theirs <= 1 for own, theirs in zip(counts(found.ours), counts(found.apache), strict=True))


def _differ_in_unacked(found: Difference) -> bool:
    """Whether two statistics are the same but for messages that are not acknowledged."""

    def rest(stats: dict[str, Any]) -> Any:
        names = [[name, kind, backlog] for name, kind, backlog, *_ in stats["subscriptions"]]
        return {**stats, "subscriptions": names}

    both = isinstance(found.apache, dict) and isinstance(found.ours, dict)
    return both and bool(rest(found.apache) == rest(found.ours))


def _differ_in_backlog(found: Difference) -> bool:
    """Whether two statistics are the same but for the backlog of a subscription, which ours has less of."""

    def rest(stats: dict[str, Any]) -> Any:
        return {**stats, "subscriptions": [[name, kind, *more] for name, kind, _, *more in stats["subscriptions"]]}

    if not (isinstance(found.apache, dict) and isinstance(found.ours, dict)) or rest(found.apache) != rest(found.ours):
        return False
    pairs = zip(found.apache["subscriptions"], found.ours["subscriptions"], strict=True)
    return all(ours[2] <= theirs[2] for theirs, ours in pairs)


def _come_back_to_less_room(program: Program, difference: Difference) -> bool:
    """Whether a limit below the number of clients was set before the topic was unloaded."""
    before = program[: difference.at]
    for at, unload in enumerate(before):
        if unload.what == "unload":
            for policy, verb in (("maxConsumers", "subscribe"), ("maxProducers", "produce")):
                clients = [one.who for one in before[:at] if one.what == verb and one.get("topic") == unload.who]
                limits = [
                    one.get("value") for one in before[:at]
                    if one.what == "set" and str(one.get("policy")).startswith(policy)
                ]  # fmt: skip
                if limits and limits[-1] and len(set(clients)) > limits[-1]:
                    return True
    return False


LISTED: Final[tuple[Listed, ...]] = (
    Listed(
        "expiry in partitions", " expire$",
        "Apache's broker answers 409 if one of the partitions has nothing to expire; ours if all of them have not",
        _outcomes(409, None),
    ),
    Listed(
        "compaction is a subscription", " (subscribe|read_from|view|compact|stats|subscriptions)",
        "Apache's broker compacts by an Exclusive subscription: limits of numbers and types count and forbid it, and "
        "its cursor stays where nothing was compacted; ours compacts beside the subscriptions",
        lambda program, found: _after(program, found, "maxSubscriptionsPer|maxConsumers|subscriptionTypesEnabled") and (
            (found.apache, found.ours) == ("ERROR", "SUCCESS")
            or (found.apache != "ERROR" and _after(program, found, " compact$|compactionThreshold"))
        ),
    ),
    Listed(
        "a peek makes a subscription",
        " (peek|stats|subscriptions|delete|subscribe|make|skip|clear|reset|expire|remove|analyze)",
        "Apache's broker makes the missing subscription whose messages are looked at; ours makes none",
        lambda program, found: any(
            one.what == "peek" and _is_new(program, one) for one in program[: found.at + 1]
        ),
    ),
    Listed(
        "who comes back first", " (drain|receive|ack|nack|send|flush|stats|subscribe|produce)",
        "after an unload more clients come back than there is room for now: whoever is refused, at either broker, is "
        "the later one",
        _come_back_to_less_room,
    ),
    Listed(
        "parts of batches after an unload", " (drain|receive|stats|backlog|peek|ack|subscriptions)",
        "Apache's broker 4.2.4 forgets at an unload which messages of a batch were acknowledged; 4.0.8, 5.0.1 and ours "
        "keep it",
        lambda program, found: LINE == "4.2.4" and _after(program, found, " unload$")
        and _after(program, found, "batch_index=true") and _after(program, found, "batching="),
    ),
    Listed(
        "no such type of subscriptions", " set policy=\"subscriptionTypesEnabled\"",
        "Apache's broker fails for a type that does not exist (500); ours says so (412)",
        lambda _, found: (found.apache[0], found.ours[0]) == (500, 412),
    ),
    Listed(
        "fenced out", " (stats|produce|delete)",
        "a producer that another one fences out is told by ours, so that it comes back when the topic is free; "
        "Apache's broker leaves it until it sends, and closes its connection then",
        lambda program, found: _after(program, found, "ExclusiveWithFencing") and _are_other_producers(found),
    ),
    Listed(
        "passed over, and not acknowledged", " stats",
        "what the admin API passed over counts no more as sent and not acknowledged; at Apache's broker it does, until "
        "the consumer acknowledges it",
        lambda program, found: _after(program, found, " (clear|skip|expire)") and _differ_in_unacked(found),
    ),
    Listed(
        "the same schema where no other is taken", " subscribe .*schema=",
        "with ALWAYS_INCOMPATIBLE Apache's broker refuses consumers with the topic's own schema, too",
        lambda program, found: (found.apache, found.ours) == ("IncompatibleSchema", "done")
        and _after(program, found, "ALWAYS_INCOMPATIBLE")
        and any(one.get("schema") == found.event.get("schema") for one in program[: found.at]),
    ),
    Listed(
        "the same schema after an unload", " (stats|receive|drain|delete|subscribe)",
        "the same, for a consumer that comes back after an unload",
        lambda program, found: _after(program, found, "ALWAYS_INCOMPATIBLE") and _after(program, found, " unload$")
        and _after(program, found, " subscribe .*schema="),
    ),
    Listed(
        "compaction leaves no backlog", " stats",
        "what compaction left out will be sent to nobody: with ours it counts as consumed by a subscription that reads "
        "what was kept, with Apache's broker it stays in the backlog for ever",
        lambda program, found: _after(program, found, " compact$") and _after(program, found, "compacted=true")
        and _differ_in_backlog(found),
    ),
    Listed(
        "the schema is looked at first", " (subscribe|produce) .*schema=",
        "who is refused for two reasons hears the other one: ours looks at the schema first",
        lambda program, found: found.ours == "IncompatibleSchema"
        and found.apache in ("ConsumerBusy", "ProducerBusy")
        and _after(program, found, "maxConsumers|maxProducers"),
    ),
    Listed(
        "parts of batches that are not acknowledged", " stats",
        "of a batch whose parts are acknowledged one by one, Apache's broker counts some as acknowledged twice",
        lambda program, found: _after(program, found, "batching=") and _after(program, found, " ack ")
        and _differ_in_unacked(found),
    ),
    Listed(
        "limits of what is not acknowledged", " (receive|drain|stats)",
        "with ours a limit that is set counts at once; Apache's broker looks at it when it has sent the next messages",
        lambda program, found: _after(program, found, "maxUnackedMessages"),
    ),
    Listed(
        "what a consumer that left had", " (drain|receive)",
        "ours counts what goes to another consumer as redelivered; Apache's broker counts what clients ask for again",
        lambda program, found: _after(program, found, "^c[0-9]+ (close|seek)|unload")
        and _differ_in_redeliveries(found),
    ),
    Listed(
        "terminated topics", "",
        "Apache's broker loses track of terminated topics: one whose ledger is just full goes on; one that is empty "
        "closes its consumers' connection, and cannot be opened again (NoSuchElementException); an Exclusive producer "
        "that comes back leaves it taken for ever",
        lambda program, found: found.event.what == "terminate" or _after(program, found, " terminate"),
    ),
)  # fmt: skip


def listed(program: Program, difference: Difference) -> Listed | None:
    """The entry that explains this difference."""
    text = str(difference.event)
    return next((one for one in LISTED if re.search(one.what, text) and one.is_it(program, difference)), None)
