"""Records what an Apache broker answers to calls about messages: `python -m tests.golden.record_messages`.

The broker is the one of `record_permissions`; there is no tenant m1.

    python -m tests.golden.record_messages http://127.0.0.1:8080 pulsar://127.0.0.1:6650
"""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import pulsar

from tests.golden.record_permissions import CLUSTER, TIMEOUT_S, token
from tests.support.message_calls import DEEDS, TOP, Step, same, steps

FILE: Final = Path(__file__).parents[1] / "vectors" / "messages" / "http.json"


def ask(url: str, step: Step) -> dict[str, Any]:
    request = urllib.request.Request(url + step.path, method=step.method)
    request.add_header("Authorization", f"Bearer {token('admin')}")
    if step.body is not None:
        request.data = json.dumps(step.body).encode()
        request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            status, headers, body = answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, headers, body = error.code, error.headers, error.read().decode()
    shown = {name: value for name, value in headers.items() if name.lower().startswith("x-pulsar")}
    if status >= 400:
        return {"status": status}
    try:
        return {"status": status, "headers": shown, "json": json.loads(body)}
    except ValueError:
        return {"status": status, "headers": shown, "text": body}


def main() -> None:
    url, service_url = sys.argv[1:3]
    client = pulsar.Client(service_url, authentication=pulsar.AuthenticationToken(token("admin")))
    rows, ledger_id = [], -1
    for step in steps(CLUSTER):
        if not step.method:
            DEEDS[step.path](client)
            (ledger,) = ask(url, Step("GET", f"{TOP}/internalStats"))["json"]["ledgers"]
            ledger_id = ledger["ledgerId"]
            continue
        answer = same(ask(url, step.with_ledger(ledger_id)), ledger_id)
        rows.append({"method": step.method, "path": step.path, "body": step.body, "answer": answer})
        print(step.method, step.path, answer["status"], flush=True)
    client.close()
    FILE.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
