"""Renewing leases and sending pending releases, in the background."""
