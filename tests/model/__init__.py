"""The protocol of docs/protocol.rst as a small exhaustive model: every order in which things can happen is tried.

* ``world.py``: what a state consists of.
* ``scripts.py``: the Lua scripts; read it beside ``django_redislock/scripts/``.
* ``processes.py``: attempts, listeners and the watchdog, and what befalls them; each action is named and described.
* ``search.py``: breadth-first search through all states, so that a violation is shown by a shortest way to it.

Run it by hand, from the root of the repository, with the modes and the processes of the clients, how many faults there
may be, and a rule to leave out (R1, R6, R7, R9)::

    python -m tests.model FFF 001 1
    python -m tests.model LLF 012 2
    python -m tests.model FFF 001 1 R6

In the suite (``tests/test_model.py``) a scene has one fault at most. ``REDISLOCK_TEST_FAULTS=2`` walks through all
scenes with two: a million states and two minutes for each of the fair ones, several times that for the others.

**What is promised**: no two holders that believe their lease at the same time; who enters has a higher fence than all
before; nobody is granted the lock before one who was first, but by the one rule that allows it; nobody who finds the
lock free is refused when nobody else may have it; and when nothing goes on any more, the next look of each process
brings all its waiters back into the queue, and does not leave the lock free, or with one who has left.

**What is left out, and why that hides nothing**

* *Time.* Only its order matters: the local deadline of a lease (of the holder, and of whoever reads of it late) passes
  before the lease ends in Redis, which is what R1 is there to ensure. Both are events that may come at any moment, a
  clock's look too. Renewal is the deadline's not coming.
* *Slowness.* A process that runs reads messages and answers before a deadline passes; one that is slower is one that is
  stopped at that point and goes on later. A request that is on its way may take for ever.
* *Second attempts.* Each client tries once, with a token of its own; a second attempt is a further client.
* *Numbers.* Fences and tickets are only compared among themselves, so that a state has their ranks. That they grow
  across FLUSHALL is not modelled, nor are evictions and failovers: no rule promises exclusion there.
* *Lost answers, gone:\\* (R8), adoption (R13), release by force.* tests/test_machine.py has those, on a real server.
* *Polled waiters (R3), batches of 5,000, NOSCRIPT.* They have tests of their own.
* *Symmetry.* Clients that are alike begin in a fixed order.
"""
