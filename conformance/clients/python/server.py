"""A server with the library websockets, for the client of windlass-websocket.

The path says what it does with each message: it echoes it, in fragments on `/fragments`. On
`/ping` it pings first, and on `/close` it closes. It ends when it is killed.
"""

import asyncio
import ssl

from websockets.asyncio.server import serve as listen


async def handle(socket):
    path = socket.request.path
    if path == "/close":
        return await socket.close(4001, "by the server")
    if path == "/ping":
        await (await socket.ping(b"from the server"))
        await socket.send("ponged")
    async for message in socket:
        if path == "/fragments":
            size = len(message) // 3 + 1
            await socket.send([message[at : at + size] for at in range(0, len(message), size)])
        else:
            await socket.send(message)


async def serve(certificate, key=None):
    context = None
    if key:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
    async with listen(handle, "127.0.0.1", 0, ssl=context, max_size=4 << 20) as server:
        print("listening on", server.sockets[0].getsockname()[1], flush=True)
        await asyncio.Future()
