"""What the official Go client meets otherwise at our broker than at Apache's, with the reasons.

A key is a scenario of `go_client` and a step of it, as they stand in its lines.
"""

from typing import Final

DIFFERENT: Final[dict[tuple[str, str], str]] = {
    ("batch-index", "after an unload"):
        "ours keeps which messages of a batch are acknowledged when a topic is unloaded; Apache's broker forgets it, "
        "and delivers them again",
    ("transactions", "client"):
        "ours refuses transactions at the lookup of their coordinators, which Java's client takes as final; Apache's "
        "broker refuses the connect to a coordinator. The code is the same",
}  # fmt: skip
