"""The same for django-rq."""

from __future__ import annotations

from django_rq.queues import DjangoRQ

from .rq import LockedQueue


class LockedDjangoRQ(LockedQueue, DjangoRQ):
    """The ``QUEUE_CLASS`` of django-rq, whose queues acquire the locks of jobs: see LockedQueue.

    What waits for COMMIT acquires its lock then.
    """
