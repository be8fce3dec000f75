"""``python tests/helpers/tls.py CERTIFICATE PORT``: a port that speaks TLS, requires client certificates, and forwards
to a plain port; prints the port it listens at, and ends with its stdin. A process of its own because asyncio leaves
unfinished handshakes open, and tests of what *we* leave open must not see those."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from contextlib import closing, suppress


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with closing(writer), suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


async def main(certificate: str, port: str) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificate)
    context.load_cert_chain(certificate)
    context.verify_mode = ssl.CERT_REQUIRED

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", int(port))
        await asyncio.gather(copy(reader, up_writer), copy(up_reader, writer))

    listening = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=context)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
