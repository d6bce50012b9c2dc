"""The recorded files and rows with which golden tests fail today, and why.

test → {`file` or `file:row` → reason}; both parts may contain * and ?. A line without a row covers the whole file. The
test fails when a listed row passes, so a change that closes a gap also removes its line.
"""

from collections.abc import Iterable
from typing import Final

_TABLES: Final = "the table service of BookKeeper, which Pulsar's initialisation prepares; it is not served"


def _calls(numbers: Iterable[int], reason: str, row: str = "status") -> dict[str, str]:
    """A line for each of these HTTP calls."""
    return {f"http/{number:03}-*:{row}": reason for number in numbers}


_LAZY_CURSOR: Final = "a cursor gets its ledger with the first acknowledgement, not when it is made"
_AT_END: Final = "a cursor that has everything has no entry before it; Apache counts one"
_BEFORE_START: Final = (
    "a cursor made at the very beginning reads from the first entry; Apache shows the position before"
)
_NEW_LEDGER: Final = "the empty ledger that a topic begins when it is opened is not counted before it holds an entry"

_NOT_FOUND: Final = "what is not there is not found; Apache answers 500 with a stack trace"

_MESSAGES: Final[dict[str, str]] = {
    "messages/http.json:* GET */ledger/LEDGER/entry/77": _NOT_FOUND,
    "messages/http.json:* GET */examinemessage[?]initialPosition=latest&messagePosition=99": (
        "refused with how many entries there are; Apache answers 500 with a stack trace"
    ),
}

_HTTP: Final[dict[str, str]] = {
    **_calls([133], _NOT_FOUND),
    **_calls(
        [21],
        "the bookies come in the order of their names; Apache's come in that of a hash table",
        ".bookies[[][23]].bookieId",
    ),
    **_calls([198], "nobody has used a non-persistent topic before"),
    **_calls([202], "the numbers come at once; the redirect to /metrics/ is the habit of Apache's web server"),
    "http/206-*:.*": "no broker has this subject: the reason is told as everywhere, not as Apache's web server does",
    **_calls([204], "answered without a status file: the process serves"),
    "http/016-*:": "settings that mean nothing here, or are read when a broker starts, cannot be changed",
    "http/017-*:names": "settings that mean nothing here do not exist",
    "http/019-*:names": "the recorded broker owned other bundles",
    "http/123-*:.cursors.s?.cursorsLedgerId": _LAZY_CURSOR,
    "http/123-*:.cursors.s?.version": _LAZY_CURSOR,
    # Statistics.
    "http/170-*:.cursors.__compaction.properties.CompactedTopicLedger": "another cluster has other ledgers",
    "http/12[12]-*:.cursors.s?.cursorLedger*": _LAZY_CURSOR,
    "http/127-*:*.cursors.ps.cursorLedger*": _LAZY_CURSOR,
    "http/12[12]-*:.cursors.s?.state": _LAZY_CURSOR,
    "http/127-*:*.cursors.ps.state": _LAZY_CURSOR,
    "http/12[12]-*:.cursors.live.numberOfEntriesSinceFirstNotAckedMessage": _AT_END,
    "http/127-*:*.cursors.*.numberOfEntriesSinceFirstNotAckedMessage": _AT_END,
    "http/170-*:.cursors.[!s]*.numberOfEntriesSinceFirstNotAckedMessage": _AT_END,
    "http/12[12]-*:.cursors.s2.numberOfEntriesSinceFirstNotAckedMessage": _BEFORE_START,
    "http/12[12]-*:.cursors.s2.readPosition": _BEFORE_START,
    "http/122-*:.ledgers?0?.metadata": "ledger metadata is not shown over HTTP; `bookkeeper shell` shows it",
    "http/122-*:.ledgers?0?.underReplicated": "the recorded ledger was under-replicated at that moment",
    "http/136-*:.entryId": "the recorded time lies between the recorded messages, and before ours",
    "http/169-*:.entryId": _NEW_LEDGER,
    "http/170-*:.lastConfirmedEntry": _NEW_LEDGER,
    "http/170-*:.ledgers[[][]]": _NEW_LEDGER,
    "http/170-*:.cursors.*.messagesConsumedCounter": "counts what was consumed since ever, not since the unload",
    "http/18[12]-*:.*": "a reason as with every other refusal; Apache's web server answers for itself here",
    "http/194-*:.oldestBacklogMessageSubscriptionName": (
        "only messages in closed ledgers have an age, and the replayed topic has none; the recorded one had several"
    ),
    "http/199-*:": "nobody uses a non-persistent topic in the replay",
}

_WRITE_AHEAD: Final = "Apache lists the write-ahead logs of RocksDB among the entry logs"
_SANE: Final = (
    "a bookie that was made read-only is healthy, and says what it is; Apache's test writes a ledger and fails"
)
_HUNDREDTH: Final = "a page has a hundred ledgers; Apache leaves the last of them out"

_BOOKIE_HTTP: Final[dict[str, str]] = {
    "http/504-*:names": "settings that mean nothing here do not exist",
    **_calls([505], "settings are read when the bookie starts, and cannot be changed while it runs (501)"),
    "http/518-*:.entrylog files": _WRITE_AHEAD,
    "http/520-*:.entrylog files": _WRITE_AHEAD,
    **_calls([526], "shows the cookies of the cluster; Apache's bookie has no such path"),
    **_calls([535], "directories are not added to a bookie (501)"),
    "http/540-*:.passed": _SANE,
    "http/540-*:.readOnly": _SANE,
    "http/54[45]-*:.109": _HUNDREDTH,
}

_SHOWN_TO_ALL: Final = "Apache's tells whether it exists to everybody who is connected"
_GROUPS: Final = "a tenant's administrator uses no resource group, which may be another tenant's, and leaves none"
_ROLES: Final[dict[str, str]] = {
    "permissions/binary.json:GET_SCHEMA anonymous": "Apache's shows schemas to everybody who is connected",
    "permissions/binary.json:GET_SCHEMA of a missing topic anonymous": _SHOWN_TO_ALL,
    "permissions/http.json:POST /admin/v2/namespaces/t1/n1/resourcegroup/one boss": _GROUPS,
    "permissions/http.json:DELETE /admin/v2/namespaces/t1/n1/resourcegroup boss": _GROUPS,
    "permissions/binary.json:GET_OR_CREATE_SCHEMA anonymous": "Apache's stores schemas for everybody who is connected",
    "permissions/binary.json:GET_OR_CREATE_SCHEMA consumer": "Apache's stores schemas for everybody who is connected",
    **{
        f"permissions/http.json:GET /lookup/v2/topic/persistent/t1/nope/top {role}": _SHOWN_TO_ALL
        for role in ("anonymous", "producer", "consumer")
    },
    **{
        f"permissions/http.json:GET /admin/*namespaces/standalone/antiAffinity/group[?]property=t1 {role}": (
            "refused like everything else; Apache's broker fails (500)"
        )
        for role in ("anonymous", "producer", "consumer", "boss")
    },
    "permissions/http.json:POST /admin/v2/*persistent/t1/n1/parted*/createMissedPartitions anonymous": (
        "Apache's asks for the right to look up first, which it refuses with 401 instead of 403"
    ),
}

_ABSENT: Final = "a namespace that does not exist is not found, whatever is asked of it"
_IN_ORDER: Final = "types stay in the order in which they were given; Apache's come in that of a hash table"
_REFUSED: Final = "an unknown name is refused; Apache's broker takes it for none, or fails"

_NAMESPACE_POLICIES: Final[dict[str, str]] = {
    "policies/namespace.jsonl:* namespaces/t1/nope/antiAffinity": _ABSENT,
    "policies/namespace.jsonl:* POST namespaces/t1/nope/offloadPolicies": _ABSENT,
    "policies/namespace.jsonl:420 *": _REFUSED,
    "policies/namespace.jsonl:453 *": _IN_ORDER,
    "policies/namespace.jsonl:454 *.subscription_types_enabled": _IN_ORDER,
    "policies/namespace.jsonl:458 *": _REFUSED,
}

_BOTH_QUOTAS: Final = (
    "both quotas are told; Apache's broker shows only those in a copy that an earlier question has changed"
)

_TOPIC_POLICIES: Final[dict[str, str]] = {
    **dict.fromkeys((f"policies/topic.jsonl:{row} *.message_age" for row in (255, 263, 266, 272)), _BOTH_QUOTAS),
    "policies/topic.jsonl:279 *": _REFUSED,
    "policies/topic.jsonl:280 *": _REFUSED,
    "policies/topic.jsonl:32[23] *": _IN_ORDER,
    "policies/topic.jsonl:327 *": _REFUSED,
}

_NOT_COMPACTED: Final = "nobody compacts the topic in the replay, so all messages come"
_HANGS_UP: Final = "a mistake of a client is answered with an error; Apache's broker hangs up"

KNOWN_DIFFERENCES: Final[dict[str, dict[str, str]]] = {
    "test_sessions_with_the_broker": {
        "wire/pulsar*:* feature_flags": "no de-duplication of replicated messages: not announced",
        "wire/pulsar-java-readcompacted.jsonl:9 MESSAGE": _NOT_COMPACTED,
        "wire/pulsar-java-readcompacted.jsonl:1? MESSAGE": _NOT_COMPACTED,
        "wire/pulsar-java-readcompacted.jsonl:* nothing else": _NOT_COMPACTED,
        "wire/pulsarraw-badstats.jsonl:3 end": _HANGS_UP,
        "wire/pulsarraw-badstats.jsonl:* nothing else": _HANGS_UP,
        "wire/pulsarraw-lists.jsonl:22 end": _HANGS_UP,
        "wire/pulsarraw-lists.jsonl:connection 0 nothing else": _HANGS_UP,
    },
    "test_answers_to_each_role": _ROLES,
    "test_calls_of_the_broker": _HTTP,
    "test_calls_are_answered_as_apache_answers_them": {
        "rest/topics.json:* GET */q/subscription/r/replicatedSubscriptionStatus": (
            "made as replicated it is so in all partitions; Apache's broker does not tell the partitions"
        ),
    },
    "test_policies_of_a_namespace": _NAMESPACE_POLICIES,
    "test_policies_in_force": {
        "policies/inherited.jsonl:169 *.message_age": _BOTH_QUOTAS,
        "policies/inherited.jsonl:181 *.message_age": _BOTH_QUOTAS,
    },
    "test_policies_of_a_topic": _TOPIC_POLICIES,
    "test_settings_while_a_broker_runs": {
        "policies/settings.jsonl:1 *": "settings that mean nothing here, or are read at the start, cannot be changed"
    },
    "test_calls_about_messages": _MESSAGES,
    "test_calls_of_the_bookie": _BOOKIE_HTTP,
    "test_every_node_of_the_tree": {
        "zookeeper/*:/loadbalance/broker-time-average/*": "our leader writes it, and reads it nowhere",
        "zookeeper/*:/pulsar/functions": "the package store of Pulsar Functions; functions are not served",
        "zookeeper/*:/stream": _TABLES,
        "zookeeper/*:/stream/metadata": _TABLES,
        "zookeeper/*:/stream/s*": _TABLES,
    },
}
