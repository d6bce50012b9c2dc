"""The simple topic API over gRPC (`magnetar.topics.v1`): Publish and Consume streams, and calls about topics."""
