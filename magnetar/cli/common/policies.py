"""Names of policies in the help of `set-policy` and `get-policy`, and near names for a wrong one."""

import contextlib
import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import click

from magnetar.inspect.broker_admin import AdminError

Names = Callable[[], Iterable[str]]

_QUOTA: Final = "backlogQuota"
_UNKNOWN: Final = (404, 405, 501)
"""How Apache's brokers and ours answer for a policy that they do not know."""


def of_namespaces() -> Iterable[str]:
    from broker.policies.rules import policies_of

    return {*policies_of(""), _QUOTA}


def of_topics() -> Iterable[str]:
    from broker.policies.topic.record import TOPIC_POLICIES

    return {*TOPIC_POLICIES, _QUOTA}


def read_name(policy: str) -> str:
    """What *policy* is called where it is read: there are several backlog quotas, and they are read together."""
    return "backlogQuotaMap" if policy == _QUOTA else policy


class PolicyCommand(click.Command):
    """A command with the argument POLICY."""

    names: Names = staticmethod(of_namespaces)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Policies"):
            formatter.write_text(", ".join(sorted(self.names())))

    def invoke(self, ctx: click.Context) -> Any:
        with _near_names(ctx.params["policy"], self.names):
            return super().invoke(ctx)


class TopicPolicyCommand(PolicyCommand):
    names: Names = staticmethod(of_topics)


@contextlib.contextmanager
def _near_names(policy: str, names: Names) -> Iterator[None]:
    """Apache's brokers may know others than ours, so a broker is asked first."""
    try:
        yield
    except AdminError as error:
        known = list(names())
        if error.status not in _UNKNOWN or policy in known:
            raise
        near = difflib.get_close_matches(policy, known, 3, 0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "--help lists those of our brokers"
        raise AdminError(f"{error}; {policy} is not a policy that is known here: {hint}", error.status) from None
