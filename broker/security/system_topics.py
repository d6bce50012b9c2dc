"""Which topics belong to the brokers, and what others may do with them. No IO.

    __change_events                          the policies of single topics: a writer there sets any of them
    __transaction_…, …__transaction_pending_ack   what Apache's brokers keep of transactions
    pulsar/system/…                          load data, transaction coordinators, usage of resource groups
    pulsar/<host:port>/…                     health checks

Rules:

1. Only super users, which the brokers of a cluster are, produce, consume, and change or delete anything there. A
   permission in the namespace, or the tenant's administrator's rights, are for topics of the tenant.
2. The same holds for the namespaces that are theirs as a whole: their policies, permissions, backlogs, deletion.
3. Who may do it for the other topics of the namespace may look a topic up and ask how large it is: clients that want
   transactions look up `transaction_coordinator_assign`, and the tenant pays for what is stored.
"""

import re
from typing import Final

from magnetar_core.topics.topic_name import TopicName

_NAMESPACES: Final = re.compile(r"pulsar/(system|.+:[0-9]{1,5})", re.ASCII)
"""The brokers' own namespace, and that of a broker's health check."""


def is_of_brokers(namespace: str) -> bool:
    """Whether all of `tenant/namespace` is the brokers' own."""
    return _NAMESPACES.fullmatch(namespace) is not None


def belongs_to_brokers(topic: TopicName) -> bool:
    """Whether *topic*, or the partitioned topic that it belongs to, is the brokers' own."""
    return topic.is_system or is_of_brokers(topic.namespace)
