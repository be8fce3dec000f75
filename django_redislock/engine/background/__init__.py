"""Background threads, the site's own code that runs in them, and outages."""
