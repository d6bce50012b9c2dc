"""The persistent topics that a broker has open, and how often that has changed."""

from broker.topic.topic import Topic
from managed_ledger.topic_name import TopicName


class OpenTopics(dict[TopicName, Topic]):
    """A dictionary that counts its changes, so that whoever looks each second need not compare ten thousand names."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def __setitem__(self, name: TopicName, topic: Topic) -> None:
        self.changes += 1
        super().__setitem__(name, topic)

    def __delitem__(self, name: TopicName) -> None:
        self.changes += 1
        super().__delitem__(name)

    def pop(self, name: TopicName, default: Topic | None = None) -> Topic | None:  # type: ignore[override]
        """The topic, which is in it no more; *default* if it was not."""
        self.changes += 1
        return super().pop(name, default)
