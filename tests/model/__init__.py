"""The protocol of docs/protocol.rst as a small exhaustive model: every order in which things can happen is tried.

* ``world.py``: what a state consists of.
* ``scripts.py``: the Lua scripts; read it beside ``django_redislock/store/lua/``.
* ``processes.py``: attempts, listeners and the watchdog, and what befalls them; each action is named and described.
* ``failover.py``: a master that its replica follows, and what a process makes of that.
* ``search.py``: breadth-first search through all states, so that a violation is shown by a shortest way to it.

Run it by hand, from the root of the repository, with the processes of the attempts, their tokens, how many faults there
may be, and a rule to leave out (R1, R6, R7, R9, R16)::

    python -m tests.model 001 abc 1
    python -m tests.model 012 aab 2
    python -m tests.model 001 abc 1 R6

With ``lost`` there is a failover, to a replica that lacks so many writes at most. It multiplies the states: a ``story``
tells how a scene begins, and all that can follow is tried. ``failover.py`` lists the rules that can be left out::

    python -m tests.model 01 ab 1 lost=1
    python -m tests.model 001 abc 0 C6 lost=1 acknowledged=1 story="begin 0, serve 0, begin 1, serve 1"

In the suite (``tests/model/test_model.py``) a scene has one fault at most. ``REDISLOCK_TEST_FAULTS=2`` walks through
all scenes with two: a million states and minutes for each.

**What is promised**: no two holders that believe their lease at the same time; who enters has a higher fence than all
before, or has adopted the lock of an attempt with the same token; nobody is granted the lock before one who was first;
nobody who finds the lock free is refused when nobody stands before it; and when nothing goes on any more, the next look
of each process brings all its waiters back into the queue, and does not leave the lock free, or with one who has left.
Over a failover too, but for this: who has lost a lease by it, and could not know, may believe it beside another one
until its next renewal tells, its fence being the lower one; and a lock whose release was lost is held to its end. With
replicas asked for, nobody enters beside another one. (Where clocks differ by more than a failover takes, no rule helps:
``test_failover.py`` shows what happens.)

**What is left out, and why that hides nothing**

* *Time.* Only its order matters: the local deadline of a lease (of the holder, and of whoever reads of it late) passes
  before the lease ends in Redis, which is what R1 is there to ensure. Both are events that may come at any moment, a
  clock's look too. Renewal is the deadline's not coming.
* *Slowness.* A process that runs reads messages and answers before a deadline passes; one that is slower is one that is
  stopped at that point and goes on later. A request that is on its way may take for ever.
* *Two attempts of one job at once.* An attempt with the token of another one begins when that has left, or died
  (except with ``together``). What it left behind (a release or a withdrawal that is still to be sent) may come at any
  time.
* *Numbers.* Fences and tickets are only compared among themselves, so that a state has their ranks. That they grow
  across FLUSHALL is not modelled, nor are evictions: no rule promises exclusion there. Tickets always grow.
* *Failovers.* One in a scene. A master that was cut off and goes on serving is one whose writes are lost: what it does
  after the promotion could as well have come before. All replicas acknowledge, or none; and a node that has just been
  promoted has another replica. Moved slots are a failover without a lost write, as far as subscriptions go. A process
  finds the master at once when it subscribes, as R3's probe would tell it otherwise.
* *Lost answers, gone:\\* (R8), release by force.* tests/protocol has those, on a real server.
* *Polled waiters (R3), batches, NOSCRIPT.* They have tests of their own.
* *Symmetry.* Attempts that are alike begin in a fixed order.
"""
