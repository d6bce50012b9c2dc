"""Many topics, a producer each, one official client in a process of its own (`bench.demo.gaps`).

    python -m bench.topic_gaps pulsar://… --topics 1000

Prints a JSON line `{"created_s": …}` when all producers are there. Then it publishes and reads lines:

    mark      begin to look
    report    print one JSON line: for each topic [longest silence in s, when it began, when it ended or null]; of each
              topic the longest time from send to receipt in s, ascending; the 99th percentile of all in ms; and the
              messages that failed, by reason
    end       close the producers and end
"""

import argparse
import json
import sys

from bench.client_load import client_of
from bench.demo.gaps import PERIOD_S, Load
from magnetar_core.runtime.process.daemon import new_clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--period", type=float, default=PERIOD_S, help="s between two messages of a topic")
    parser.add_argument("--prefix", default="persistent://public/default/gap-")
    options = parser.parse_args()
    topics = [f"{options.prefix}{number}" for number in range(options.topics)]
    load = Load(client_of(options.url), topics, new_clock(), options.period)
    print(json.dumps({"created_s": load.created_s}), flush=True)
    for line in sys.stdin:
        word = line.strip()
        if word == "mark":
            load.mark()
        elif word == "report":
            found = {"silences": load.silences(), "waits": load.waits(), "p99_ms": load.p99_ms()}
            print(json.dumps(found | {"failed": load.failures}), flush=True)
        elif word == "end":
            break
    load.end()


if __name__ == "__main__":
    main()
