"""The doctor's findings from given facts about a cluster."""

from dataclasses import replace

import pytest

from magnetar.inspect.contents import Contents
from magnetar.inspect.doctor_rules import (
    BookieFacts,
    BrokerFacts,
    ClusterFacts,
    LedgerFacts,
    LossFacts,
    QuotaFacts,
    SubscriptionFacts,
    examine,
    examine_handover,
)
from magnetar.inspect.findings import Level, Unasked, exit_code
from magnetar_core.bookkeeper.client.placing.regions import DEFAULT_RACK
from magnetar_core.bookkeeper.client.placing.topology import Location, Topology

GIB = 1 << 30
DAY_S = 86_400


def bookie(name: str, state: str = "writable", **facts: object) -> BookieFacts:
    return replace(BookieFacts(name, state, 100 * GIB, 60 * GIB), **facts)  # type: ignore[arg-type]


def closed(last_entry_id: int, *ensemble: str, write_quorum: int = 2) -> LedgerFacts:
    return LedgerFacts(5, write_quorum, ((0, ensemble),), last_entry_id)


def subscription(**facts: object) -> SubscriptionFacts:
    usual = SubscriptionFacts("orders", "billing", "Shared", 500, 10, 2, 1_000, is_blocked=False)
    return replace(usual, **facts)  # type: ignore[arg-type]


ONE_HOST = Topology({f"b{at}": Location(DEFAULT_RACK, "x") for at in range(1, 5)})
TWO_RACKS = Topology({f"b{at}": Location("/r" if at < 3 else "/s", f"x{at}") for at in range(1, 5)})
FOUR = tuple(bookie(name) for name in ("b1", "b2", "b3", "b4"))
FINE = ClusterFacts(
    "zk:a:1",
    metadata_s=0.01,
    bookies=FOUR,
    ensemble_size=3,
    brokers=(BrokerFacts("br1", "http://br1"),),
    ledgers=(LedgerFacts(0, 2, ((0, ("b1", "b2", "b3")),)),),
    subscriptions=(subscription(),),
)


@pytest.mark.parametrize(
    ("facts", "is_named", "where", "words"),
    [
        ({"quotas": (QuotaFacts("orders", 95, 100),)}, True, "topic orders", "95 % of its quota"),
        ({"quotas": (QuotaFacts("orders", 94, 100),)}, False, "", ""),
        ({"auditor": ""}, True, "auto-recovery", "no node of it runs"),
        ({"auditor": "", "bookies": FOUR[:1], "ensemble_size": 0, "ledgers": ()}, False, "", ""),
        ({"auditor": "V_1"}, False, "", ""),
        ({"contents": (Contents("a/b", shadows=("s",)),)}, True, "namespace a/b", "1 topic is a shadow of another (s)"),
        ({"contents": (Contents("a/b"),)}, False, "", ""),
        ({"has_coordinator": True}, True, "transactions", "our brokers refuse clients that begin a transaction"),
        ({"quotas": (QuotaFacts("orders", 94, -1), QuotaFacts("bills", 0, 0))}, False, "", ""),
        ({"subscriptions": (subscription(consumers=0, backlog=3, backlog_bytes=2 * GIB),)}, True,
         "subscription billing of orders", "3 entries (2.0 GiB)"),
        ({"subscriptions": (subscription(consumers=0, backlog=3, backlog_bytes=GIB - 1),)}, False, "", ""),
        ({"subscriptions": (subscription(consumers=1, backlog=3, backlog_bytes=2 * GIB),)}, False, "", ""),
        ({"brokers": (BrokerFacts("a", "u", certificate_left_s=13.5 * DAY_S),)}, True, "broker a", "ends in 13 days"),
        ({"brokers": (BrokerFacts("a", "u", certificate_left_s=-1),)}, True, "broker a", "has ended"),
        ({"brokers": (BrokerFacts("a", "u", certificate_left_s=15 * DAY_S),)}, False, "", ""),
        ({"brokers": (BrokerFacts("a", "u", bundles=17), BrokerFacts("b", "v", bundles=0))}, True,
         "brokers", "a owns 17 bundles, and b 0"),
        ({"brokers": (BrokerFacts("a", "u", bundles=17), BrokerFacts("b", "v", bundles=5))}, False, "", ""),
        ({"brokers": (BrokerFacts("a", "u", bundles=4), BrokerFacts("b", "v", bundles=0))}, False, "", ""),
        ({"brokers": (BrokerFacts("a", "u", bundles=17), BrokerFacts("b", "v"))}, False, "", ""),
    ],
)  # fmt: skip
def test_what_will_be_trouble_is_named_before(facts: dict[str, object], is_named: bool, where: str, words: str) -> None:
    findings = examine(replace(FINE, **facts))  # type: ignore[arg-type]
    assert bool(findings) is is_named, findings
    if is_named:
        (finding,) = findings
        assert finding.where == where
        assert words in finding.text
        assert finding.way_out


def test_a_cluster_that_is_well_has_no_findings() -> None:
    assert examine(FINE) == []
    assert exit_code([]) == 0


@pytest.mark.parametrize(
    ("facts", "level", "where", "words"),
    [
        ({"metadata_error": "no answer"}, 2, "zk:a:1", "no answer"),
        ({"metadata_s": 2.0}, 1, "zk:a:1", "took 2.0 s"),
        ({"bookies": (), "ledgers": ()}, 2, "bookies", "there is no bookie"),
        (
            {"bookies": (bookie("b1"), bookie("b2")), "ledgers": ()},
            2, "bookies", "2 of 2 take new entries, and a new ledger needs 3",
        ),
        ({"bookies": (bookie("b1"), bookie("b2"), bookie("b3"))}, 1, "bookies", "none may fail"),
        ({"bookies": (*FOUR, bookie("b5", error="refused"))}, 2, "bookie b5", "does not answer: refused"),
        (
            {"bookies": (*FOUR, bookie("b5", "read-only", reasons=("operator: update",)))},
            1, "bookie b5", "read-only (operator: update)",
        ),
        ({"bookies": (*FOUR, bookie("b5", free_bytes=10 * GIB))}, 1, "bookie b5", "90 % full"),
        ({"bookies": (*FOUR, bookie("b5", free_bytes=GIB))}, 2, "bookie b5", "99 % full"),
        ({"bookies": (*FOUR, bookie("b5", skew_s=-30.0))}, 1, "bookie b5", "30 s behind"),
        (
            {"bookies": (*FOUR, bookie("b5", "away"))},
            0, "bookie b5", "it is away, and 0 ledgers have copies on it",
        ),
        (
            {"bookies": (*FOUR, bookie("b5", "away", listens=True))},
            1, "bookie b5", "something still listens at its address; 0 ledgers",
        ),
        ({"ledgers": (closed(7, "b1", "b9"),)}, 1, "bookie b9", "1 ledger has copies on it"),
        ({"unreadable": (Unasked("ledger 7", "cut short"),)}, 2, "ledger 7", "makes no sense: cut short"),
        ({"under_replicated": (7, 8)}, 1, "copies", "2 ledgers are marked as under-replicated (7, 8); nobody"),
        ({"under_replicated": (7,), "auditor": "V_1"}, 1, "copies", "1 ledger is marked as under-replicated (7)"),
        ({"hindered": {7: ("lost", "entries 0 to 3 are gone")}}, 2, "ledger 7", "entries 0 to 3 are gone"),
        (
            {"hindered": {8: ("no-target", "no bookie is free"), 9: ("open", "x")}},
            1, "copies", "2 ledgers could not be repaired yet (8, 9), for example: no bookie is free",
        ),
        ({"failed_drains": {"b4": 2}}, 2, "bookie b4", "its drain failed: 2 ledgers could not be moved"),
        ({"open_reports": 1}, 1, "reports", "1 report of bad ledgers or lost entries, and nobody has looked"),
        (
            {"open_reports": 5, "losses": tuple(LossFacts(at, f"topic {at}: 7 entries are lost") for at in range(5))},
            2, "lost entries",
            "5 reports say that entries are lost: ledger 0: topic 0: 7 entries are lost; ledger 1: topic 1: 7 entries "
            "are lost; ledger 2: topic 2: 7 entries are lost; and 2 more",
        ),
        (
            {"bookies": (bookie("b1", lost_logs="/l/0.log is missing: 7 entries lost"), *FOUR[1:])},
            2, "bookie b1", "/l/0.log is missing: 7 entries lost",
        ),
        (
            {"bookies": (bookie("b1", open_to_others=("/j", "/l")), *FOUR[1:])},
            1, "bookie b1", "every user of its machine may read what is stored: /j, /l",
        ),
        ({"open_to_others": ("/d/metadata",)}, 1, "zk:a:1", "may read what is stored: /d/metadata"),
        (
            {"doubted": {"b1": 1, "b2": 0, "b3": 7}},
            2, "zk:a:1",
            "the metadata is older than the ledgers: 1 ledger of b1, 0 ledgers of b2, 7 ledgers of b3 have no record.",
        ),
        ({"replication_disabled": True}, 1, "auto-recovery", "switched re-replication off"),
        ({"ledgers_left": 20}, 0, "copies", "20 older ledgers were not looked at"),
        ({"topics_left": 1}, 0, "subscriptions", "those of 1 topic were not looked at"),
        ({"topology": ONE_HOST}, 0, "bookies", "all 4 are on one host (x): copies"),
        (
            {"topology": TWO_RACKS}, 1, "copies",
            "of 1 ledger (0) copies are in too few racks or on too few hosts, for example of ledger 0: b1, b2 are in 1",
        ),
        ({"rack_problems": ("/bookies: damaged",)}, 1, "racks", "damaged"),
        ({"silent_hosts": (Unasked("a:2", "refused"),)}, 1, "zk:a:1", "its server a:2 does not answer: refused"),
        ({"silent_admins": (Unasked("http://x", "refused"),)}, 1, "broker at http://x", "does not answer: refused"),
        ({"unasked": (Unasked("bookies", "no answer"),)}, 1, "bookies", "this could not be asked: no answer"),
        ({"brokers_error": "no broker answers", "brokers": ()}, 2, "brokers", "no broker answers"),
        ({"brokers": ()}, 2, "brokers", "no broker is registered"),
        ({"brokers": (BrokerFacts("br1", "http://br1", error="timed out"),)}, 2, "broker br1", "timed out"),
        ({"brokers": (BrokerFacts("br1", "http://br1", health="no ledger"),)}, 2, "broker br1", "no ledger"),
        ({"brokers": (BrokerFacts("br1", "http://br1", refusal="HTTP 401"),)}, 1, "broker br1", "does not say whether"),
        ({"brokers": (BrokerFacts("br1", "http://br1", skew_s=8.0),)}, 1, "broker br1", "8 s ahead"),
        ({"subscriptions": (subscription(is_blocked=True),)}, 2, "subscription billing of orders", "stuck: 10"),
        ({"subscriptions": (subscription(permits=0),)}, 1, "subscription billing of orders", "none of its 2 consumers"),
        ({"subscriptions": (subscription(consumers=0, backlog=10**6),)}, 1, "subscription billing of orders", "nobody"),
    ],
)  # fmt: skip
def test_each_trouble_is_named_with_a_way_out(facts: dict[str, object], level: int, where: str, words: str) -> None:
    (found,) = examine(replace(FINE, **facts))  # type: ignore[arg-type]
    assert (found.level, found.where) == (Level(level), where)
    assert words in found.text
    assert found.way_out or found.level == Level.INFO
    assert exit_code([found]) == level


@pytest.mark.parametrize("facts", [{"backlog": 0, "is_blocked": True}, {"consumers": 0}, {"backlog": 0, "permits": 0}])
def test_a_subscription_without_trouble_is_left_alone(facts: dict[str, object]) -> None:
    assert examine(replace(FINE, subscriptions=(subscription(**facts),))) == []


@pytest.mark.parametrize(
    ("ledger", "lost"),
    [
        (closed(9, "b8", "b9"), True),
        (closed(9, "b1", "b9"), False),
        (closed(-1, "b8", "b9"), False),
        (closed(9, "b1", "b8", "b9"), True),
        (closed(0, "b1", "b8", "b9"), False),
        (closed(1, "b1", "b8", "b9"), True),
        (closed(9, "b1", "b8", "b9", write_quorum=3), False),
        (LedgerFacts(5, 2, ((0, ("b1", "b2")), (4, ("b8", "b9")))), True),
        (LedgerFacts(5, 2, ((0, ("b1", "b2")), (4, ("b8", "b9"))), 3), False),
        (LedgerFacts(5, 2, ((0, ("b8", "b9")), (4, ("b1", "b2"))), 7), True),
    ],
)
def test_a_ledger_is_lost_where_no_bookie_of_an_entrys_write_set_is_there(ledger: LedgerFacts, lost: bool) -> None:
    found = examine(replace(FINE, ledgers=(ledger,)))
    assert [one for one in found if one.where == "copies"] == [one for one in found if one.level is Level.ERROR], (
        "the only error there is"
    )
    assert any("cannot be read" in one.text for one in found) == lost


def test_without_the_metadata_store_brokers_are_judged_all_the_same() -> None:
    found = examine(ClusterFacts("zk:a:1", metadata_error="refused", brokers_error="nobody"))
    assert [one.where for one in found] == ["zk:a:1", "brokers"]


def test_where_nothing_answers_and_nothing_was_named_a_standalone_is_thought_of_too() -> None:
    facts = ClusterFacts("zk:a:1", is_guessed=True, metadata_error="refused", brokers_error="nobody")
    (found,) = examine(facts)
    assert (found.level, found.where) == (Level.ERROR, "servers")
    assert "nobody; zk:a:1: refused" in found.text
    assert "magnetar standalone --data FOLDER" in found.way_out
    assert len(examine(replace(facts, is_guessed=False))) == 2


def test_a_standalone_is_not_warned_of_what_it_is() -> None:
    facts = replace(
        FINE, metadata_url="rocksdb:/srv/data/metadata", bookies=(bookie("b1"),), ensemble_size=1, ledgers=()
    )
    (found,) = [one for one in examine(facts) if one.where == "bookies"]
    assert (found.level, "`magnetar backup`" in found.way_out) == (Level.INFO, True)
    (found,) = [one for one in examine(replace(facts, metadata_url="zk:a:1")) if "none may fail" in one.text]
    assert found.level is Level.WARNING


@pytest.mark.parametrize(
    ("status", "way"), [(0, "--tls-trust"), (401, "--profile, --token"), (403, "--profile, --token")]
)
def test_a_broker_that_lets_nobody_in_is_not_called_away(status: int, way: str) -> None:
    """It alone knows where the metadata are: what was guessed says nothing."""
    facts = ClusterFacts(
        "zk:a:1", is_guessed=True, metadata_error="refused", brokers_error="HTTP 401", brokers_status=status
    )
    (found,) = examine(facts)
    assert (found.level, found.where, found.text) == (Level.ERROR, "brokers", "HTTP 401")
    assert way in found.way_out
    assert len(examine(replace(facts, is_guessed=False))) == 2


def test_a_broker_that_answers_an_error_is_not_to_be_started() -> None:
    facts = ClusterFacts(
        "zk:a:1", is_guessed=True, metadata_error="silent", brokers_error="no ZooKeeper server", brokers_status=500
    )
    found = examine(facts)
    assert [one.where for one in found] == ["zk:a:1", "brokers"]
    assert "look at its log" in found[1].way_out


def test_a_standalone_that_is_stopped_is_to_be_started() -> None:
    facts = ClusterFacts(
        "rocksdb:/srv/data/metadata", bookies=(bookie("bookie-1", state="away"),), brokers_error="nobody"
    )
    (found,) = examine(facts)
    assert (found.level, found.where) == (Level.ERROR, "standalone in /srv/data")
    assert "does not run: nobody" in found.text
    assert "`magnetar standalone --data /srv/data`" in found.way_out
    one_there = replace(facts, bookies=(bookie("bookie-1"),))
    assert {one.where for one in examine(one_there)} >= {"brokers"}, "its broker alone does not answer"


def test_the_worst_comes_first_and_gives_the_exit_code() -> None:
    found = examine(replace(FINE, ledgers_left=99, metadata_s=1.0, brokers=()))
    assert [one.level for one in found] == [Level.ERROR, Level.WARNING, Level.INFO]
    assert exit_code(found) == 2


def test_before_a_handover_only_what_would_change_is_said() -> None:
    ill = replace(FINE, bookies=(), auditor="", topics_left=3)
    assert examine(ill)
    assert examine_handover(ill) == []
    facts = replace(
        ill,
        contents=(Contents("a/b", scalable=("s",)),),
        refused_settings=(Unasked("br1", "functionsWorkerEnabled=true: not there"),),
        contents_left=7,
        unasked=(Unasked("topics of a/b", "no answer"),),
    )
    texts = [f"{finding.where}: {finding.text}" for finding in examine_handover(facts)]
    assert texts == [
        "namespace a/b: 1 topic is scalable (s); our brokers refuse topic://",
        "topics: what 7 topics hold was not looked at (--time-limit)",
        "topics of a/b: this could not be asked: no answer",
        "broker br1: its settings would be refused: functionsWorkerEnabled=true: not there",
    ]
    assert exit_code(examine_handover(facts)) == 1


@pytest.mark.parametrize(
    ("facts", "where"),
    [
        ({"brokers": (), "brokers_error": "connection refused"}, "brokers"),
        ({"brokers": (BrokerFacts("br1", "http://br1", error="connection refused"),)}, "broker br1"),
    ],
)
def test_before_a_handover_settings_that_could_not_be_compared_are_not_fine(
    facts: dict[str, object], where: str
) -> None:
    (finding,) = examine_handover(replace(FINE, **facts))  # type: ignore[arg-type]
    assert (finding.where, finding.level) == (where, Level.WARNING)
    assert finding.text == "whether its settings would be taken is not known: connection refused"


def test_topics_of_which_the_contents_were_not_looked_at_are_counted() -> None:
    (finding,) = examine(replace(FINE, contents_left=7))[:1]
    assert (finding.level, finding.text) == (Level.INFO, "what 7 topics hold was not looked at (--time-limit)")


def test_before_a_handover_a_metadata_store_that_does_not_answer_is_an_error() -> None:
    findings = examine_handover(replace(FINE, metadata_error="no answer within 15 s"))
    assert exit_code(findings) == 2
