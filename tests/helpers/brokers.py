"""A message broker of its own for the tests of task queues."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from redisserver import free_ports
from tests.helpers.actors import until
from tests.helpers.processes import MissingError, require


def _find_rabbitmq() -> str:
    # Debian's /usr/sbin/rabbitmq-server changes to a user of its own
    path = os.pathsep.join(["/usr/lib/rabbitmq/bin", os.environ.get("PATH", ""), "/usr/local/sbin"])
    found = shutil.which("rabbitmq-server", path=path)
    if found is None:
        raise MissingError("RabbitMQ", "apt-get install rabbitmq-server, or brew install rabbitmq")
    return found


def _says_killed(environment: Mapping[str, str]) -> bool:
    end = subprocess.run(["epmd", "-kill"], env={**os.environ, **environment}, capture_output=True, check=False)
    return b"Killed" in end.stdout or b"Cannot connect" in end.stdout + end.stderr


@contextmanager
def rabbitmq() -> Iterator[str]:
    """Run a RabbitMQ server; its URL."""
    program, (port, distribution, names) = require(_find_rabbitmq), free_ports(3)
    with TemporaryDirectory(prefix="redislock-mq-", ignore_cleanup_errors=True) as folder:
        own = {
            "RABBITMQ_NODENAME": f"locks{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "ERL_EPMD_PORT": str(names),
            "RABBITMQ_MNESIA_BASE": f"{folder}/db",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_CONFIG_FILE": f"{folder}/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "HOME": folder,
        }
        log = Path(folder, "out")
        with log.open("wb") as out:
            server = subprocess.Popen(
                [program], env={**os.environ, **own}, stdout=out, stderr=out, start_new_session=True
            )
        try:
            until(lambda: b"completed with" in log.read_bytes() or server.poll() is not None, within=120)
            assert server.poll() is None, log.read_text(errors="replace")[-2000:]
            yield f"amqp://guest:guest@127.0.0.1:{port}//"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            with suppress(OSError):  # Erlang's name server outlives the node, and ends once that has left it
                until(lambda: _says_killed(own))
