"""Functions and commands that run one at a time."""
