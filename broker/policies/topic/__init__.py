"""The policies of single topics: events of the system topic `__change_events`."""
