"""The protocol of docs/protocol.rst as a small exhaustive model, which tries every order in which things can happen.

* ``world.py``: what a state consists of.
* ``scripts.py``: the Lua scripts; compare it with ``django_redislock/store/lua/``.
* ``processes.py``: attempts, listeners and the watchdog, and what can happen to them; each action has a description.
* ``failover.py``: a master with a replica, and how processes deal with a failover.
* ``search.py``: a breadth-first search through all states, which shows a shortest path to a violation.

Run it by hand with the process of each attempt, their tokens, how many faults there may be, and, if you like, a rule to
leave out (R1, R6, R7, R9, R16, and those of ``failover.py``) and fields of a ``Scene``::

    python -m tests.model 001 abc 1 R6
    python -m tests.model 001 abc 0 C6 lost=1 acknowledged=1 story="begin 0, serve 0, begin 1, serve 1"
    python -m tests.model 0012 abcd 0 limit=2

**What is left out**, and tested elsewhere: time (a local deadline comes before the end of the lease in Redis, R1; both
may come at any moment, and so may a look), slowness (a slow process is one that is stopped and goes on later), lost
answers (R8), polling (R3), force-releases, pools and suspensions; of semaphores also failovers, and limits that change.
"""
