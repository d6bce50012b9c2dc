"""What transactions of Apache's brokers left: topics that are refused, acknowledgements that are taken over."""
