"""What ``manage.py redislocks`` is made of."""
