"""What a holder knows of its lease, and how a lease is lost."""
