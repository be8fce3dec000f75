"""The protocol of docs/protocol.rst as a small exhaustive model, which tries every order in which things can happen.

* ``world.py``: what a state consists of.
* ``scripts.py``: the Lua scripts; compare it with ``django_redislock/store/lua/``.
* ``processes.py``: attempts, listeners and the watchdog, and what can happen to them; each action has a description.
* ``failover.py``: a master with a replica, and how processes deal with a failover.
* ``search.py``: a breadth-first search through all states, which shows a shortest path to a violation.

Run it by hand from the root of the repository. Give it the process of each attempt, their tokens, how many faults there
may be, and, if you like, a rule to leave out (R1, R6, R7, R9, R16)::

    python -m tests.model 001 abc 1
    python -m tests.model 012 aab 2
    python -m tests.model 001 abc 1 R6

With ``lost`` there is a failover to a replica that lacks at most so many writes. This multiplies the states. A
``story`` says how a scene begins; everything that can follow is tried. ``failover.py`` lists the rules that can be left
out::

    python -m tests.model 01 ab 1 lost=1
    python -m tests.model 001 abc 0 C6 lost=1 acknowledged=1 story="begin 0, serve 0, begin 1, serve 1"

In the suite (``tests/model/test_model.py``) a scene has at most one fault. ``REDISLOCK_TEST_FAULTS=2`` searches
all scenes with two, which takes a million states and minutes for each.

**What is checked**: no two holders believe their lease at the same time. Whoever enters has a higher fence than all
before, or has adopted the lock of an attempt with the same token. Nobody is granted the lock before an earlier waiter.
No attempt that finds the lock free is refused if nobody is before it in the queue. When nothing happens any more, the
next look of each process brings all its waiters back into the queue, and leaves the lock neither free nor with an
attempt that has left. All this also holds across a failover, with two exceptions: a holder that has lost its lease by
the failover may believe it, with a lower fence than the new holder's, until its next renewal; and a lock whose release
was lost stays held until its lease ends. With acknowledging replicas, no two are inside at once. (If clocks differ by
more than a failover takes, no rule helps: ``test_failover.py`` shows what happens.)

**What is left out, and why that hides no violation**

* *Time.* Only its order matters: the local deadline of a lease (of the holder, and of whoever reads of it late) passes
  before the lease ends in Redis, as R1 ensures. Both are events that may come at any moment, and so is a scheduled
  look. A renewal means that the deadline does not come.
* *Slowness.* A running process reads messages and answers before a deadline passes; a slower one is modelled as one
  that is stopped at that point and continues later. A request that is on its way may take for ever.
* *Two attempts of one job at once.* An attempt with the token of another one begins when the other has left or died
  (except with ``together``). What it left behind (a release or a withdrawal that is still to be sent) may come at any
  time.
* *Numbers.* Fences and tickets are only compared with each other, so a state has only their ranks. That they grow
  across FLUSHALL is not modelled, nor are evictions: no rule promises exclusion there. Tickets always grow.
* *Failovers.* One per scene. A master that was cut off and goes on serving is one whose writes are lost: what it does
  after the promotion could as well have come before. All replicas acknowledge, or none; and a node that has just been
  promoted has another replica. Moved slots are a failover without a lost write, as far as subscriptions go. A process
  finds the master at once when it subscribes, as R3's probe would tell it otherwise.
* *Lost answers, gone:\\* (R8), force-release.* tests/protocol tests these on a real server.
* *Polling waiters (R3), batches, NOSCRIPT.* They have tests of their own.
* *Symmetry.* Identical attempts begin in a fixed order.
"""
