"""Calls about topics, their subscriptions, messages, schemas and policies."""
