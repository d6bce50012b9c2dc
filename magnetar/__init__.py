"""Magnetar: a Pulsar-compatible message store."""

__version__ = "0.1.0"
