"""Real servers for the tests of applications: `standalone()` and `cluster()` for any framework, fixtures for pytest.

    with magnetar.testing.standalone() as server:
        client = pulsar.Client(server.service_url)

See docs/testing.md. Only the standard library is loaded before something is started.
"""

from magnetar.testing.servers import (
    ClusterUnderTest,
    ServerFailed,
    ServerUnderTest,
    TopicPlace,
    cluster,
    standalone,
)

__all__ = ["ClusterUnderTest", "ServerFailed", "ServerUnderTest", "TopicPlace", "cluster", "standalone"]
