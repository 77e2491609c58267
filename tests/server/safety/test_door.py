"""Connections that say little, or nothing, or what is refused: none is held for ever."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import httpx
import pytest
from chats import WAIT, asked

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web.guard import Limits
from kvactors.actors.frontends.server.web.serve import Server, serve
from kvactors.actors.testing import FaultyModel

SECONDS = 0.4
KEY = "k" * 20
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture(scope="module")
def system() -> Iterator[AgentSystem]:
    with AgentSystem(FaultyModel(), store=False, context=4096) as system:
        yield system


@pytest.fixture(scope="module")
def server(system: AgentSystem) -> Iterator[Server]:
    limits = Limits(seconds=SECONDS, slowest=1000)
    with serve(system, port=0, any_model=True, grace=1, limits=limits) as server:
        yield server


@pytest.fixture(scope="module")
def locked(system: AgentSystem) -> Iterator[Server]:
    keys, limits = {KEY}, Limits(seconds=5)
    with serve(system, port=0, any_model=True, grace=1, keys=lambda: keys, limits=limits) as server:
        yield server


def connected(server: Server) -> "closing[socket.socket]":
    url = httpx.URL(server.url)
    return closing(socket.create_connection((url.host, url.port or 80), timeout=WAIT))


def rest(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    said = b""
    try:
        while part := connection.recv(65536):
            said += part
    except ConnectionResetError:
        pass
    return said


def drip(connection: socket.socket, data: bytes) -> "threading.Event":
    """Send byte by byte, one each tenth of the time that there is, until it is over; the event
    says that the other side had enough before the last."""
    over, refused = threading.Event(), threading.Event()

    def send() -> None:
        for place in range(len(data)):
            try:
                connection.sendall(data[place : place + 1])
            except OSError:
                refused.set()
                return
            over.wait(SECONDS / 10)

    threading.Thread(target=send, daemon=True).start()
    return refused


def test_headers_that_come_byte_by_byte_for_ever_are_ended(server: Server) -> None:
    with connected(server) as connection:
        drip(connection, HEAD + b"X-Long: " + b"x" * 1000)

        assert rest(connection).startswith(b"HTTP/1.1 408 ")


def test_so_are_those_of_a_second_request(server: Server) -> None:
    with connected(server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        drip(connection, HEAD + b"X-Long: " + b"x" * 1000)

        assert b"HTTP/1.1 408 " in rest(connection)


def test_a_connection_that_says_nothing_is_ended(server: Server) -> None:
    with connected(server) as connection:
        assert rest(connection).startswith(b"HTTP/1.1 408 ")


def test_a_body_that_comes_byte_by_byte_for_ever_is_ended(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(server) as connection:
        connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n")
        refused = drip(connection, b" " * 1000)

        rest(connection)
        assert refused.wait(WAIT)
    assert "failed" not in caplog.text


def test_a_body_that_takes_longer_than_that_but_comes_is_read(server: Server) -> None:
    body = json.dumps(asked("hello")).encode().ljust(3000)
    waits = threading.Event()

    with connected(server) as connection:
        connection.sendall(HEAD + b"Connection: close\r\nContent-Length: 3000\r\n\r\n")
        for place in range(0, 3000, 150):
            connection.sendall(body[place : place + 150])
            waits.wait(SECONDS / 5)

        assert rest(connection).startswith(b"HTTP/1.1 200")


def test_an_answer_takes_as_long_as_it_takes(server: Server) -> None:
    body = asked("hello", max_tokens=3000, stream=True)

    text = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=WAIT).text

    assert text.rstrip().endswith("[DONE]")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ("Host: evil.example", 403),
        ("host:evil.example", 403),
        ("Host: 127.0.0.1\r\nOrigin: https://evil.example", 403),
        ("Host: 127.0.0.1", 401),
        ("Host: 127.0.0.1\r\nX-Api-Key: " + "x" * 20, 401),
        ("Host: 127.0.0.1\r\nAuthorization: Bearer " + KEY + "\r\nContent-Length: 99999999", 413),
        ("Host: 127.0.0.1\r\nContent-Length: " + "9" * 20, 413),
        ("Host: 127.0.0.1\r\nContent-Length: " + "9" * 5000, 400),
        ("Host: 127.0.0.1\r\nContent-Length: many", 400),
        ("Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\nX-Api-Key: " + KEY, 403),
        ("Host: 127.0.0.1\r\nSec-Fetch-Site: same-site\r\nX-Api-Key: " + KEY, 403),
        ("Host: 127.0.0.1\r\nSec-Fetch-Site: same-origin\r\nX-Api-Key: " + KEY, 200),
        ("Host: 127.0.0.1\r\nSec-Fetch-Site: none\r\nX-Api-Key: " + KEY, 200),
        (
            "Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Dest: document\r\n"
            "X-Api-Key: " + KEY,
            200,
        ),
        ("Host: 127.0.0.1\r\nHost: 127.0.0.1", 400),
        ("Host: 127.0.0.1\r\nauthorization:bearer  " + KEY, 200),
        ("HOST: localhost:1\r\nX-API-KEY: " + KEY, 200),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_it_is_the_same_in_one_piece_and_in_many(
    locked: Server, fields: str, status: int, *, whole: bool
) -> None:
    request = f"GET /v1/models HTTP/1.1\r\n{fields}\r\nConnection: close\r\n\r\n".encode()
    with connected(locked) as connection:
        # Only what comes in one piece is looked at before the application is asked.
        if not whole:
            connection.sendall(request[:-1])
            # Who is answered later came later: what was sent has been read.
            httpx.get(f"{locked.url}/health", timeout=WAIT)
        connection.sendall(request if whole else request[-1:])

        assert rest(connection).startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.parametrize(("length", "status"), [(40_000, 200), (70_000, 431), (140_000, 431)])
@pytest.mark.parametrize("piece", [1000, 30_000, 1_000_000])
def test_headers_have_one_bound_however_they_are_cut(
    locked: Server, length: int, status: int, piece: int
) -> None:
    long = "x" * length
    head = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nX-Long: {long}\r\n\r\n"
    with connected(locked) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError):
            for place in range(0, len(head), piece):
                connection.sendall(head[place : place + piece].encode())

        said = rest(connection)

    assert said.startswith(f"HTTP/1.1 {status} ".encode())
    assert status == 200 or b"65536 bytes" in said


def test_headers_that_do_not_end_are_refused_before_their_time_is_up(locked: Server) -> None:
    with connected(locked) as connection:
        connection.sendall(HEAD + b"X-Long: ".ljust(2 * Limits().headers - len(HEAD) + 1, b"x"))

        assert rest(connection).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("path", ["/health", "/%68ealth", "/?x=1"])
def test_what_needs_no_key_needs_none_however_it_is_spelled(locked: Server, path: str) -> None:
    with connected(locked) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())

        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (f"Content-Length: {8 << 20}", 401),
        (f"Authorization: Bearer {KEY}\r\nContent-Length: {65 << 20}", 413),
        ("Transfer-Encoding: chunked", 401),
        (f"Authorization: Bearer {KEY}\r\nTransfer-Encoding: chunked", 413),
    ],
)
def test_who_is_refused_hears_it_after_all_that_was_on_its_way(
    locked: Server, fields: str, status: int
) -> None:
    chunk = b"%x\r\n" % (1 << 20) + b" " * (1 << 20) + b"\r\n"
    with connected(locked) as connection:
        connection.sendall(HEAD + fields.encode() + b"\r\n\r\n")
        for _ in range(66 if status == 413 else 8):
            connection.sendall(chunk)

        said = rest(connection)

    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"connection: close" in head.lower().split(b"\r\n")
    assert json.loads(body)["error"]["message"]


def test_who_is_refused_and_never_ends_is_heard_for_some_seconds(server: Server) -> None:
    with connected(server) as connection:
        connection.sendall(HEAD + f"Content-Length: {65 << 20}\r\n\r\n".encode())
        refused = drip(connection, b" " * 1000)

        assert rest(connection).startswith(b"HTTP/1.1 413 ")
        assert refused.wait(WAIT)


def test_the_headers_behind_a_long_body_are_counted_alone(server: Server) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "a" * 400_000}]}).encode()
    length = f"Content-Length: {len(body)}\r\n\r\n".encode()
    with connected(server) as connection:
        for data in (HEAD.replace(b"chat/completions", b"messages/count_tokens") + length, body):
            connection.sendall(data)
        heard = b""
        while b"error" not in heard and b"input_tokens" not in heard:
            heard += connection.recv(65536)

        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        # Who is answered later came later: what was sent has been read.
        httpx.get(f"{server.url}/health", timeout=WAIT)
        connection.sendall(b"Connection: close\r\n\r\n")

        assert rest(connection).startswith(b"HTTP/1.1 200")
