"""`python -m tests.soak --minutes 10 --seed 7`: see run.py. Ends with 1 if something was found; the folder is kept."""

import argparse
import shutil
import signal
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from magnetar.testing.servers import ServerFailed
from tests.soak.run import LANGUAGES, SoakFailed, soak
from tests.support.zookeeper import why_not


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="A cluster under load and faults.")
    parser.add_argument("--minutes", type=float, default=10.0, help="about how long (10); rounds are not cut short")
    parser.add_argument("--seed", default="", help="repeats what a run with this seed did; default: a new one")
    parser.add_argument("--first-round", type=int, default=1, help="begin with this round of the seed (1)")
    parser.add_argument("--clients", default=",".join(LANGUAGES), help="which languages (python,java,go)")
    parser.add_argument("--directory", help="where logs and data go (a temporary folder)")
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    languages = [each for each in options.clients.split(",") if each]
    if not set(languages) <= set(LANGUAGES) or "python" not in languages:
        sys.exit(f"--clients {options.clients}: python, and of {', '.join(LANGUAGES[1:])} what you like")
    # Servers, clients and the small disk are removed also when the run is ended by a signal.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit("ended by a signal"))
    now = datetime.now(UTC)
    seed = options.seed or str(int(now.timestamp()))
    directory = Path(options.directory or tempfile.mkdtemp(prefix="magnetar-soak-"))
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "soak.log").open("a", encoding="utf-8") as log:

        def remark(text: str) -> None:
            line = f"{datetime.now(UTC):%H:%M:%S} {text}"
            print(line, flush=True)
            print(line, file=log, flush=True)

        try:
            soak(
                directory, minutes=options.minutes, seed=seed, languages=languages, remark=remark,
                first_round=options.first_round,
            )  # fmt: skip
        except (SoakFailed, ServerFailed) as error:
            remark(f"FOUND with seed {seed}:\n{error}\nlogs and data are in {directory}")
            return 1
    if not options.directory:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
