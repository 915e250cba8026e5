"""Tests `windlass serve` with the library websockets.

usage: client.py alone URL | client.py relay URL NAME PEER... | client.py goodbye URL
       client.py serve plain | client.py serve CERTIFICATE KEY

Prints `test NAME ... ok` or `test NAME ... FAILED: why` for each test.
../README.md describes the tests.
"""

import asyncio
import sys
import traceback

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

PATIENCE_S = 60
SIZES = [0, 1, 125, 126, 65535, 65536, 1 << 20]
# The option --message-max of the server.
MESSAGE_MAX = 2 << 20
RELAYED = 300


def letters(size):
    return "".join(chr(97 + (7 * at + size) % 26) for at in range(min(size, 26))) * (size // 26 + 1)


def text_of(size):
    return letters(size)[:size]


def bytes_of(size):
    return bytes((131 * at + 7 * (at >> 8) + size) & 255 for at in range(size))


def check(is_so, what):
    if not is_so:
        raise AssertionError(what)


def open_to(url, path="/echo", **more):
    options = {"compression": None, "ping_interval": None, "proxy": None, "max_size": 2 * MESSAGE_MAX}
    return connect(url + path, **{**options, **more})


async def echoes(socket, message, what):
    await socket.send(message)
    answer = await socket.recv()
    check(type(answer) is type(message), f"{what}: it comes back as {type(answer).__name__}")
    check(answer == message, f"{what}: other content, {len(answer)} long")


async def handshake_without_compression(url):
    async with open_to(url) as socket:
        check("Sec-WebSocket-Extensions" not in socket.response.headers, "an extension that nobody offered")
        check(socket.response.status_code == 101, "another status")
        await echoes(socket, "hello", "a greeting")


async def handshake_with_compression(url):
    async with open_to(url, compression="deflate") as socket:
        agreed = socket.response.headers.get("Sec-WebSocket-Extensions", "")
        check(agreed.startswith("permessage-deflate"), f"agreed: {agreed!r}")
        await echoes(socket, "hello" * 100, "a greeting")


async def no_subprotocol_is_chosen(url):
    async with open_to(url, subprotocols=["chat", "superchat"]) as socket:
        check(socket.subprotocol is None, f"chosen: {socket.subprotocol}")
        await echoes(socket, "hello", "a greeting")


async def another_origin_is_refused(url):
    try:
        async with open_to(url, origin="http://elsewhere.example"):
            raise AssertionError("it is let in")
    except InvalidStatus as refusal:
        check(refusal.response.status_code == 403, f"status {refusal.response.status_code}")
    async with open_to(url, origin=url.replace("ws", "http", 1)) as socket:
        await echoes(socket, "hello", "its own origin")


async def echo_of_sizes(url, make, compression):
    async with open_to(url, compression=compression) as socket:
        for size in SIZES:
            await echoes(socket, make(size), f"{size}")


async def text_comes_back(url):
    await echo_of_sizes(url, text_of, None)
    await echo_of_sizes(url, lambda size: "ü€😀" * (size // 9), None)


async def binary_comes_back(url):
    await echo_of_sizes(url, bytes_of, None)


async def compressed_text_comes_back(url):
    await echo_of_sizes(url, text_of, "deflate")


async def compressed_binary_comes_back(url):
    await echo_of_sizes(url, bytes_of, "deflate")


async def fragments_are_joined(url):
    for compression in (None, "deflate"):
        async with open_to(url, compression=compression) as socket:
            for whole in ("ü€" * 14_000, bytes_of(70_000)):
                pieces = [whole[at : at + 9_999] for at in range(0, len(whole), 9_999)] + [whole[:0]]

                async def with_pings():
                    for piece in pieces:
                        await (await socket.ping(b"between"))
                        yield piece

                await asyncio.gather(socket.send(with_pings()), received(socket, whole))


async def received(socket, whole):
    check(await socket.recv() == whole, "the whole is another")


async def pings_are_answered(url):
    async with open_to(url) as socket:
        for payload in (b"", b"x", bytes_of(125)):
            pong = await socket.ping(payload)
            await asyncio.wait_for(pong, PATIENCE_S)
        await echoes(socket, "after", "a message after pings")


async def closing_codes_come_back(url):
    for code, reason in [(1000, ""), (1001, "bye"), (3000, "own"), (4999, "ü" * 61)]:
        socket = await open_to(url)
        await socket.close(code, reason)
        check(socket.close_code == code, f"{code} is answered by {socket.close_code}")


async def faults_close_with_their_code(url):
    for what, code, message, is_text, compression in [
        ("no UTF-8", 1007, b"\xc3\x28", True, None),
        ("too long", 1009, bytes(MESSAGE_MAX + 1), False, None),
        ("too long when unpacked", 1009, bytes(MESSAGE_MAX + 1), False, "deflate"),
    ]:
        async with open_to(url, compression=compression) as socket:
            try:
                await socket.send(message, text=is_text)
                await socket.recv()
                raise AssertionError(f"{what}: it is answered")
            except ConnectionClosed as closed:
                check(closed.rcvd and closed.rcvd.code == code, f"{what}: {closed}")


async def many_connections_at_once(url):
    async def one(number):
        async with open_to(url, compression="deflate" if number % 2 else None) as socket:
            messages = [text_of(31 * at + number) if at % 2 else bytes_of(17 * at + number) for at in range(20)]
            for message in messages:
                await socket.send(message)
            for message in messages:
                check(await socket.recv() == message, f"connection {number}")

    await asyncio.gather(*(one(number) for number in range(50)))


ALONE = [
    handshake_without_compression, handshake_with_compression, no_subprotocol_is_chosen, another_origin_is_refused,
    text_comes_back, binary_comes_back, compressed_text_comes_back, compressed_binary_comes_back,
    fragments_are_joined, pings_are_answered, closing_codes_come_back, faults_close_with_their_code,
    many_connections_at_once,
]


def relayed(name, number):
    """The message of this number from this client: text and bytes in turns."""
    text = f"{name} {number} " + "ü€" * (7 * number % 400)
    return text if number % 2 else text.encode()


async def relay(url, name, peers):
    """Sends numbered messages to a room, and expects those of each peer in order."""
    async with open_to(url, "/room/tower", compression="deflate") as socket:
        next_of = dict.fromkeys(peers, None)

        async def read():
            while any(number != RELAYED for number in next_of.values()):
                message = await socket.recv()
                text = message if isinstance(message, str) else message.decode()
                peer, number = text.split(" ")[:2]
                check(peer in next_of, f"{peer} is heard, which is no peer")
                if number == "here":
                    # Earlier peers have not received our greeting, and later ones need it.
                    if next_of[peer] is None:
                        next_of[peer] = 0
                        await socket.send(f"{name} here")
                        if None not in next_of.values():
                            everybody.set()
                    continue
                check(next_of[peer] is not None, f"{peer} was not here yet")
                check(message == relayed(peer, next_of[peer]), f"{peer}: {next_of[peer]} expected, {text[:40]!r} came")
                next_of[peer] += 1

        async def write():
            await everybody.wait()
            for number in range(RELAYED):
                await socket.send(relayed(name, number))

        everybody = asyncio.Event()
        await socket.send(f"{name} here")
        await asyncio.gather(read(), write())


async def goodbye(url):
    async with open_to(url) as socket:
        await echoes(socket, "hello", "a greeting")
        print("ready", flush=True)
        try:
            await socket.recv()
            raise AssertionError("a message that nobody sent")
        except ConnectionClosed as closed:
            check(closed.rcvd and closed.rcvd.code == 1001, f"{closed}")


def run(name, test):
    try:
        asyncio.run(asyncio.wait_for(test, PATIENCE_S))
        print(f"test {name} ... ok", flush=True)
    except Exception as error:  # Whatever it is, it belongs to this test.
        traceback.print_exc()
        print(f"test {name} ... FAILED: {type(error).__name__}: {str(error)[:300]}".replace("\n", " "), flush=True)


def main(what, url, *names):
    if what == "alone":
        for test in ALONE:
            run(test.__name__, test(url))
    elif what == "relay":
        run("a_room_hears_everybody_in_order", relay(url, names[0], names[1:]))
    elif what == "goodbye":
        run("a_stop_says_goodbye", goodbye(url))
    elif what == "serve":
        import server
        asyncio.run(server.serve(url, *names))
    else:
        sys.exit(f"there is no {what}")


main(*sys.argv[1:])
