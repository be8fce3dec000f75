"""What ``manage.py lockbench`` measures: our locks and others, interleaved in one run on a private redis-server.

The parent process starts the server and reads its statistics; everything that locks runs in processes of its own:
:mod:`.workers` starts them, and :mod:`.worker` is what they run. Each mode has a module with the job that the workers
do, ``measure()`` and the rows of its table.
"""
