"""What the official Python client meets otherwise at our broker than at Apache's, with the reasons.

A key is a scenario of `python_scenarios`.
"""

from typing import Final

DIFFERENT: Final[dict[str, str]] = {
    "compacted-readers":
        "a message that deletes a key and stands behind all that its compaction kept: Apache's broker delivers it, "
        "since it reads on behind the last entry of the compacted ledger; ours reads on behind what was compacted",
}  # fmt: skip
