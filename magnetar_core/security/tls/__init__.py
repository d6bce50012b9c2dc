"""Certificates and keys, and ports that speak TLS."""
