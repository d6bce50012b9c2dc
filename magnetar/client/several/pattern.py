"""Topics by a regular expression, as the clients of Pulsar write it. No IO.

    [persistent://][tenant/namespace/]expression        without a namespace: public/default

The expression stands for the whole name of a topic in its namespace; partitions have the name of their topic.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from magnetar.client.base.arguments import check_text
from magnetar_core.topics.topic_name import TopicName, TopicNameError

_DOMAIN = "persistent://"
_DEFAULT = "public/default"


class Pattern:
    """The topics of one namespace whose names match."""

    def __init__(self, text: Any) -> None:
        """Raises TypeError, ValueError."""
        if isinstance(text, re.Pattern):
            text = text.pattern
        check_text("pattern", text)
        if text.startswith("non-persistent://"):
            raise ValueError(f"pattern={text!r}: the API serves no topics that are non-persistent")
        parts = text.removeprefix(_DOMAIN).split("/", 2)
        if len(parts) == 2 or "://" in parts[0]:
            raise ValueError(f"pattern={text!r}: expected persistent://tenant/namespace/expression, or an expression")
        self.text: str = text
        self.namespace = _DEFAULT if len(parts) == 1 else "/".join(parts[:2])
        try:
            TopicName.parse(f"{_DOMAIN}{self.namespace}/topic")
        except TopicNameError:
            raise ValueError(
                f"pattern={text!r}: {self.namespace!r} is no namespace; only the names in it may be an expression"
            ) from None
        try:
            self._expression = re.compile(parts[-1])
        except re.error as error:
            raise ValueError(f"pattern={text!r} is no regular expression: {error}") from None

    @property
    def of_names(self) -> str:
        """The pattern of full names without the domain."""
        return f"{self.namespace}/{self._expression.pattern}"

    def matching(self, topics: Iterable[str]) -> Iterator[str]:
        """Those of *topics* that match. Raises TopicNameError for what is no name."""
        for topic in topics:
            name = TopicName.parse(topic)
            if name.namespace == self.namespace and self._expression.fullmatch(name.base.local):
                yield topic
