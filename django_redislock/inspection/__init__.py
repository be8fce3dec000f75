"""Inspecting locks from outside, and force-releasing them."""
