"""Names of policies in the help of `set-policy` and `get-policy`, and near names for a wrong one."""

import contextlib
import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click

from magnetar.inspect.broker_admin import AdminError

Names = Callable[[], Iterable[str]]


def of_namespaces() -> Iterable[str]:
    from broker.policies.rules import policies_of

    return policies_of("")


def of_topics() -> Iterable[str]:
    from broker.policies.topic.record import TOPIC_POLICIES

    return TOPIC_POLICIES


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
    """A broker that does not know a policy answers 404 or 405. Apache's brokers may know others than ours."""
    try:
        yield
    except AdminError as error:
        known = list(names())
        if error.status not in (404, 405) or policy in known:
            raise
        near = difflib.get_close_matches(policy, known, 3, 0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "--help lists those of our brokers"
        raise AdminError(f"{error}; {policy} is not a policy that is known here: {hint}", error.status) from None
