"""Acquiring locks, extending and releasing them."""
