"""Signs of trouble to come, in words: for the page of a broker and for `magnetar doctor`. No IO.

The alerts in deploy/prometheus have the same limits.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from magnetar_core.runtime.types import GIB

# So much of a backlog's quota is a reason to look: beyond the whole, producers are held or messages passed over.
QUOTA_WARN: Final = 0.95

# As many bytes that nobody reads are a reason to worry, however few entries they are.
UNREAD_BYTES_WARN: Final = GIB

# Time to get another certificate, for people who are away for a week.
CERTIFICATE_WARN_S: Final = 14 * 86_400

# A broker with so many bundles more than another, and so many times as many. Below it a difference says nothing.
BUNDLES_APART_WARN: Final = 8
BUNDLES_TIMES_WARN: Final = 4


def quota_sign(used_bytes: float, limit_bytes: float) -> str:
    """About a topic's backlog; a limit of 0 or less is none. Empty: all is well, as of the others."""
    if limit_bytes <= 0 or used_bytes < QUOTA_WARN * limit_bytes:
        return ""
    return f"its backlog is {100 * used_bytes / limit_bytes:.0f} % of its quota ({limit_bytes:.0f} bytes)"


def unread_sign(entries: int, unread_bytes: float, consumers: int) -> str:
    """About a subscription."""
    if consumers or unread_bytes < UNREAD_BYTES_WARN:
        return ""
    return f"{entries} entries ({unread_bytes / GIB:.1f} GiB) are kept for it, and nobody consumes"


def certificate_sign(left_s: float | None) -> str:
    """About the certificate of a server; None: it has none."""
    if left_s is None or left_s >= CERTIFICATE_WARN_S:
        return ""
    days = int(left_s // 86_400)
    if left_s <= 0:
        return "its certificate has ended: clients refuse it"
    return f"its certificate ends in {days} {'day' if days == 1 else 'days'}"


def keys_sign(open_files: Sequence[str]) -> str:
    """About the files with keys of a broker: those that every user of its machine may read."""
    if not open_files:
        return ""
    return f"other users of its machine may read its keys: {', '.join(open_files)}"


def balance_sign(bundles: Mapping[str, int]) -> str:
    """About brokers, by the bundles that they own."""
    if len(bundles) < 2:
        return ""
    fullest, emptiest = max(bundles, key=bundles.__getitem__), min(bundles, key=bundles.__getitem__)
    high, low = bundles[fullest], bundles[emptiest]
    if high - low < BUNDLES_APART_WARN or high < BUNDLES_TIMES_WARN * low:
        return ""
    return f"{fullest} owns {high} bundles, and {emptiest} {low}"
