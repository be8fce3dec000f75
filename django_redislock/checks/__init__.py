"""System checks. Each has an id of its own."""
