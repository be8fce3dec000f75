"""What ``manage.py lockbench`` measures: our locks and others, interleaved in one run on a private redis-server.

The parent process starts the server and reads its statistics; everything that locks runs in processes of its own
(:mod:`.crew` starts them, :mod:`.worker` is what they run, :mod:`.stages` makes threads or coroutines of it). Each mode
has a module with the job that the workers do, ``measure()`` and the rows of its table.
"""
