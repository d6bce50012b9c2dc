"""How much each of several users has of a budget that they share. No IO.

Rule: where all together are above the budget, the largest gives up what it has; it frees most at once.
"""


class Room:
    """Bytes by name."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self.most_bytes = 0
        """The most bytes that were ever used at a time, before the largest user gave up its own."""
        self._sizes: dict[str, int] = {}

    def set(self, name: str, size_bytes: int) -> None:
        """Note that *name* has so much now."""
        self.used_bytes += size_bytes - self._sizes.get(name, 0)
        self._sizes[name] = size_bytes
        self.most_bytes = max(self.most_bytes, self.used_bytes)

    @property
    def too_large(self) -> str | None:
        """The name that has to give up what it has; None while there is room."""
        if self.used_bytes <= self.bytes_max:
            return None
        return max(self._sizes, key=self._sizes.__getitem__)
