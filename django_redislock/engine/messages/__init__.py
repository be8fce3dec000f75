"""Receiving messages from Redis, and the waiters that they are for."""
