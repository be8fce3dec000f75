"""The threads and tasks that locks belong to."""
