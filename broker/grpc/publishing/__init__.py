"""What becomes of the messages that clients publish over gRPC: decided here, without IO. `broker.grpc.publish` has the
calls. No IO."""
