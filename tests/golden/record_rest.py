"""Records what an Apache broker answers to the calls in `tests/support/rest_calls.py`, made by a super user.

The broker is set up as for `record_permissions`. Names of the files to write may follow its URL.

    python -m tests.golden.record_rest http://127.0.0.1:8080 [name…]
"""

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

from tests.golden.record_permissions import Http
from tests.support.rest_calls import CALLS

# Ids, times and addresses in answers, which are others each time.
_MASKS: Final = (
    (re.compile(r'"ledgerId": ?\d+'), '"ledgerId": 0'),
    (re.compile(r'"statGeneratedAt": ?\d+'), '"statGeneratedAt": 0'),
)

FOLDER: Final = Path(__file__).parents[1] / "vectors" / "rest"


def masked(text: str, broker: str) -> str:
    """An answer without what is another each time; *broker* is the address of the one that answered."""
    for pattern, put in _MASKS:
        text = pattern.sub(put, text)
    return text.replace(broker, "BROKER")


def recorded(http: Http, name: str) -> list[dict[str, Any]]:
    rows = []
    for call in CALLS[name]:
        status, text = http.ask(call, "admin")
        rows.append({**call._asdict(), "status": status, "answer": masked(text, http.broker)})
    return rows


if __name__ == "__main__":
    made = Http(sys.argv[1])
    for wanted in sys.argv[2:] or CALLS:
        rows = recorded(made, wanted)
        lines = ",\n".join(json.dumps(row) for row in rows)
        (FOLDER / f"{wanted}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
