"""Who has how much of a budget that several share. No IO.

Rule: where all together are above the budget, the largest gives up what it has; it frees most at once.
"""


class Room:
    """Bytes by name."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self.most_bytes = 0
        """That were ever used, before the largest gave up its own."""
        self._sizes: dict[str, int] = {}

    def set(self, name: str, size_bytes: int) -> None:
        """*name* has so much now."""
        self.used_bytes += size_bytes - self._sizes.get(name, 0)
        self._sizes[name] = size_bytes
        self.most_bytes = max(self.most_bytes, self.used_bytes)

    @property
    def too_large(self) -> str | None:
        """The one that gives up what it has; None while there is room."""
        if self.used_bytes <= self.bytes_max:
            return None
        return max(self._sizes, key=self._sizes.__getitem__)
