"""What everything else is built on: names, times, display, logging, and steps that serve sync and async."""
