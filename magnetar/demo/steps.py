"""What a demonstration prints: each step with the time it took, and a summary."""

from magnetar_core.runtime.daemon import new_clock
from magnetar_core.runtime.types import MagnetarError


class DemoFailed(MagnetarError):
    """A result differs from what was expected; the text says which."""


class Steps:
    """The steps of one run."""

    def __init__(self) -> None:
        self.clock = new_clock()
        self.steps: list[tuple[str, float]] = []
        self._begun = self.clock.monotonic()

    def say(self, text: str) -> None:
        print(text, flush=True)

    def done(self, text: str) -> None:
        """Print the result of a step and the time it took."""
        now = self.clock.monotonic()
        self.note(text, now - self._begun)
        self.say(f"  {text}  ({now - self._begun:.1f} s)")
        self._begun = now

    def note(self, text: str, seconds: float) -> None:
        """A time for the summary alone."""
        self.steps.append((text, seconds))

    def summary(self) -> None:
        self.say("")
        self.say("What happened:")
        for text, seconds in self.steps:
            self.say(f"  {seconds:6.1f} s  {text}")
