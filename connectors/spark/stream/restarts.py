"""What a query may not be changed to when it is started again with its checkpoint. No IO. (docs/spark.md)

Rule: a checkpoint of other topics alone is refused. Their places would stay in it without a meaning, and the new topics
would be read from their first entries, whatever the options say.
"""

from connectors.spark.options.read import ReadOptions
from connectors.spark.stream.offsets import StreamOffset
from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.topics.topic_name import TopicName


def check_topics(options: ReadOptions, offset: StreamOffset) -> None:
    """Raises ConfigurationError if the options name none of the topics of a checkpoint."""
    stored = {part.topic for part in offset.positions}
    pattern = options.pattern
    for topic in map(TopicName.parse, stored):
        if topic in options.topics if pattern is None else pattern.names(topic):
            return
    if stored:
        wanted = ", ".join(map(str, options.topics)) if pattern is None else f"topicsPattern={pattern.local}"
        raise ConfigurationError(
            f"the checkpoint is one of {', '.join(sorted(stored))}, and the query reads {wanted}: begin a new "
            "checkpoint, or read the former topics as well"
        )
