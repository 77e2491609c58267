"""Agents whose ledgers were damaged, or deleted outside the server: their clients go on."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from chats import asked, post

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.identity.index import Index
from kvactors.actors.frontends.server.web.serve import Server, serve
from kvactors.actors.testing import FaultyModel
from kvactors.core.errors import InvalidConfig


def damage(store: Path) -> None:
    """A bit of every ledger."""
    ledgers = list((store / "agents").glob("*/ledger.log"))
    assert ledgers, "no agent is stored"
    for ledger in ledgers:
        data = bytearray(ledger.read_bytes())
        data[len(data) // 3] ^= 1
        ledger.write_bytes(data)


@pytest.mark.parametrize("header", ["thread-id", "x-session-id", "x-parent-session-id"])
def test_whose_ledger_is_damaged_begins_anew(tmp_path: Path, header: str) -> None:
    said = {"x-session-id": "T1"} if header == "x-parent-session-id" else {header: "T1"}
    for first in (True, False):
        with (
            AgentSystem(FaultyModel(), store=tmp_path / "store", context=4096) as system,
            serve(system, index=tmp_path / "clients.db", port=0, any_model=True) as server,
        ):
            if first:
                post(server, asked("hello"), **said)
            for text in ("one", "two", "three") if not first else ():
                answer = post(server, asked(text), **{header: "T1"})
                assert answer.status_code == 200, answer.text
        if first:
            damage(tmp_path / "store")


def test_a_name_whose_agent_was_deleted_outside_the_server_is_free(server: Server) -> None:
    name = {"x-kvactors-agent": "ann"}
    post(server, asked("hello"), **name)
    server.service.system.forget("ann")

    assert post(server, asked("once more"), **name).headers["x-kvactors-agent"] == "ann"


def test_a_name_whose_agent_knows_another_conversation_is_not(server: Server) -> None:
    name = {"x-kvactors-agent": "ann"}
    post(server, asked("hello"), **name)

    assert post(server, asked("other"), **name).headers["x-kvactors-agent"] != "ann"


def a_folder(path: Path) -> None:
    path.mkdir()


def a_newer_one(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("pragma user_version = 99")


def somebody_elses(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("create table agents(name text)")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (a_folder, "cannot be used: unable to open"),
        (a_newer_one, "of a newer version"),
        (somebody_elses, "cannot be used: no such column"),
    ],
)
def test_an_index_that_is_none_is_refused_and_left_as_it_is(
    tmp_path: Path, made: Callable[[Path], None], said: str
) -> None:
    path = tmp_path / "clients.db"
    made(path)

    with pytest.raises(InvalidConfig, match=rf"clients\.db.* {said}"):
        Index(path)

    assert path.is_dir() is (made is a_folder)
    assert not list(tmp_path.glob("*damaged*"))
