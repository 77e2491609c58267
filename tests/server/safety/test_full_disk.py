"""The file of the index cannot be written: answers are given all the same, or refused as what
passes."""

import json
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from chats import WAIT, asked, post
from seeded import bug, seeded

from kvactors.actors.frontends.server.identity.index import Index, Known, Place
from kvactors.actors.frontends.server.web.serve import Server
from kvactors.actors.frontends.server.wire.responses.store import ResponseStore


def full(_true: Any) -> Any:
    """A method that finds the disk full."""

    def fails(*_: Any) -> Any:
        raise sqlite3.OperationalError("database or disk is full")

    return fails


def ended(text: str) -> dict[str, Any]:
    """The last event of a stream."""
    lines = [line for line in text.splitlines() if line.startswith("data: {")]
    event: dict[str, Any] = json.loads(lines[-1].removeprefix("data: "))
    return event


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_is_answered_whole_whose_index_is_damaged(server: Server, *, stream: bool) -> None:
    def damaged(_true: Any) -> Any:
        def fails(*_: Any) -> Any:
            raise sqlite3.DatabaseError("database disk image is malformed")

        return fails

    with seeded(bug(Index, "note")(damaged)):
        answer = post(server, asked(f"damaged {stream}", stream=stream))

    told = ended(answer.text) if stream else answer.json()
    assert told["choices"][0]["finish_reason"] == "length"


def test_a_file_that_is_no_index_is_set_aside_and_another_begun(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "clients.db"
    whole = Index(path)
    for number in range(300):
        known = Known(f"agent {number}", "", "", "{}", "{}", named=True)
        whole.note(known, 0, [Place(b"%d" % number, known.agent_id, 1, "mark", "{}")])
    whole.close()
    damaged = path.read_bytes()[:8192] + b"junk" * 4096

    for content in (b"junk" * 100, damaged):
        path.write_bytes(content)
        with caplog.at_level(logging.ERROR):
            Index(path).close()
        assert content in [aside.read_bytes() for aside in tmp_path.glob("clients.db.damaged-*")]
        with closing(Index(path)) as anew:
            assert anew.known("agent 1") is None
    assert caplog.text.count("is set aside as clients.db.damaged-") == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_that_cannot_be_noted_is_answered_whole(server: Server, *, stream: bool) -> None:
    with seeded(bug(Index, "note")(full)):
        answer = post(server, asked(f"hello {stream}", stream=stream))

    assert answer.status_code == 200
    told = ended(answer.text) if stream else answer.json()
    assert told["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_that_cannot_be_kept_is_given_and_says_so(
    server: Server, *, stream: bool
) -> None:
    body = {"input": f"hello {stream}", "max_output_tokens": 8, "temperature": 0, "stream": stream}

    with seeded(bug(ResponseStore, "keep")(full)):
        answer = httpx.post(f"{server.url}/v1/responses", json=body, timeout=WAIT)

    assert answer.status_code == 200
    response = ended(answer.text)["response"] if stream else answer.json()
    assert response["status"] == "incomplete"
    assert response["output"]
    assert response["store"] is False


def test_a_conversation_that_cannot_begin_is_told_to_come_later(server: Server) -> None:
    with seeded(bug(Index, "begin")(full)):
        answer = post(server, asked("nobody said this before"))

    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert post(server, asked("nobody said this before")).status_code == 200
