"""What was attacked and how: the kinds of hostile inputs, in the words of SECURITY.md, and what a run found.

`make abuse` writes its numbers to out/abuse.json; `python -m tests.abuse.kinds` puts them into the page.
"""

import json
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "SECURITY.md"
RESULTS: Final = ROOT / "out/abuse.json"

BEGIN: Final = "<!-- the last run of make abuse: python -m tests.abuse.kinds writes this -->\n"
END: Final = "<!-- end of the run -->\n"

# Of the server with open doors, whose other clients are bystanders: each must go on after each group of inputs.
OPEN: Final = {
    "binary": "commands of the binary protocol drawn from its grammar, damaged, out of order; entries that claim what "
    "they do not hold",
    "gRPC": "calls of the topic API drawn from its grammar",
    "HTTP/2": "what is no gRPC at the port of gRPC",
    "http": "calls of the admin API: methods, encoded paths, bodies, foreign origins, no HTTP at all",
    "bookie_http": "the same at the HTTP of a bookie",
    "bookie v2": "requests of the second protocol, damaged, of wrong ledgers, keys and lengths",
    "bookie v3": "requests of the third protocol, drawn from its grammar",
    "hosts": "requests under names of others (`Host`, `Origin`), as a browser sends them for a page whose name was "
    "made to point here, to the HTTP of a broker, a bookie and auto-recovery that ask nobody for a token",
}

# Of two brokers with authorization, by clients of each role; a victim of another tenant publishes and reads meanwhile.
GUARDED: Final = {
    "schemas": "wide, deep, recursive and exponential ones, names that collide, sizes beyond sense; each and then one "
    "with a field more, at each door that takes one",
    "events": "events for `__change_events` with such schemas, and with values that claim 2^60 items: only super users "
    "may write them, and theirs close no namespace",
    "batches": "compressed batches of 100,000 messages, compacted and read",
    "bodies": "HTTP bodies that say they are compressed, in chunks of one byte, longer or shorter than declared, never "
    "ended",
    "frames": "frames that declare megabytes and stay unfinished, on many connections at a time",
    "idle connections": "more connections than the server may have descriptors, which say nothing or half a greeting",
    "properties": "producers with 9,900 properties each, and their statistics",
    "consumers": "thousands of consumers of one subscription with a permit each",
    "topics": "names without end, looked up, produced to, consumed from and created, at all doors at once",
    "lists": "lists of a large ledger, and of a namespace by patterns, again and again",
    "tokens": "tokens that are cut, signed by somebody else, with numbers of 400 digits, of other forms",
    "names": "names of topics with control characters, dots, slashes: what one door takes, all take, and can delete",
    "calls": "calls over gRPC that declare a request of megabytes and do not send it, a thousand on a connection: "
    "without credentials each is refused before its request",
    "revoked": "producers, consumers, watches and calls of a role whose right is taken away, as an administrator, in a "
    "namespace, on a topic: they end, and those of others go on",
}

# Beside those servers.
ALONE: Final = {
    "Spark": "entries and values, with such schemas, as Spark reads them in a task",
    "secured": "the bookie of `standalone --secure`, by who has no certificate for it: requests of both protocols in "
    "clear text, and over TLS with no certificate, a stranger's, or one of the brokers' authority",
    "hostile server": "commands and clients against servers that send them on to hosts of others, out of TLS and to "
    "files, and answer with garbage and halves: no token goes there",
}

KINDS: Final = {**OPEN, **GUARDED, **ALONE}


class Run:
    """The numbers of a run."""

    def __init__(self) -> None:
        self._kinds: dict[str, dict[str, Any]] = {}
        self._memory_bytes = 0

    def add(self, kind: str, inputs: int, memory_bytes: int = 0, p99_ms: float | None = None) -> None:
        """*memory_bytes*: of the server; a task of Spark has another bound."""
        assert kind in KINDS, f"{kind} is no kind that SECURITY.md could name"
        told: dict[str, Any] = {"inputs": self._kinds.get(kind, {}).get("inputs", 0) + inputs}
        if p99_ms is not None:
            told["victim_p99_ms"] = round(p99_ms, 1)
        self._kinds[kind] = told
        self._memory_bytes = max(self._memory_bytes, memory_bytes)

    def results(self, seed: str) -> dict[str, Any]:
        return {"seed": seed, "memory_mb_max": self._memory_bytes >> 20, "kinds": self._kinds}

    def write(self, path: Path, seed: str) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(self.results(seed), indent=1) + "\n")


def table(results: dict[str, Any]) -> str:
    """The part of SECURITY.md about a run."""
    lines = [
        BEGIN,
        f"Seed {results['seed']}; no server held more than {results['memory_mb_max']} MB.\n",
        "\n",
        "| kind | what was sent | inputs | p99 of another tenant's messages |\n",
        "|---|---|---|---|\n",
    ]
    for kind, words in KINDS.items():
        told = results["kinds"][kind]
        p99 = f"{told['victim_p99_ms']:.0f} ms" if "victim_p99_ms" in told else ""
        lines.append(f"| {kind} | {words} | {told['inputs']:,} | {p99} |\n")
    return "".join([*lines, "\n", END])


def main() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + table(json.loads(RESULTS.read_text())) + rest.partition(END)[2])


if __name__ == "__main__":
    main()
