"""What changed in a system prompt is told once to whoever has not heard it, wherever a conversation
branches off."""

import sqlite3
from pathlib import Path
from typing import Any

import httpx
from chats import post
from inside import system_of

from kvactors.actors.frontends.server.identity.index import Index, Known, Place
from kvactors.actors.frontends.server.web.serve import Server

RULES = "Be careful. " * 30
OLD, NEW = "2026-11-22", "2026-11-23"
Said = list[dict[str, str]]


def say(server: Server, day: str, said: Said) -> httpx.Response:
    system = {"role": "system", "content": f"{RULES}\nToday's date is {day}"}
    answer = post(server, {"messages": [system, *said], "max_tokens": 4, "temperature": 0})
    assert answer.status_code == 200, answer.text
    return answer


def heard(server: Server, answer: httpx.Response) -> str:
    """All that the agent of an answer remembers."""
    return system_of(server).spawn(answer.headers["x-kvactors-agent"]).transcript().text


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def told_on_the_next_day(server: Server) -> Said:
    """What was said at first to an agent that has been told the new date since."""
    first = [user("hello")]
    answer: Any = say(server, OLD, first)
    begun = [*first, answer.json()["choices"][0]["message"]]
    told = say(server, NEW, [*begun, user("go on")])
    assert NEW in heard(server, told)
    return begun


def test_a_branch_from_before_is_told_what_has_changed_since(server: Server) -> None:
    begun = told_on_the_next_day(server)

    branch = say(server, NEW, [*begun, user("or rather this")])

    assert "forked" in branch.headers["x-kvactors-reused"]
    assert NEW in heard(server, branch)


def test_a_branch_from_before_is_told_nothing_that_it_knows(server: Server) -> None:
    begun = told_on_the_next_day(server)

    branch = say(server, OLD, [*begun, user("or rather this")])

    assert heard(server, branch).count(OLD) == 1
    assert "date" not in branch.headers.get("x-kvactors-kept", "")


def test_who_begins_with_the_words_of_another_is_told_what_that_one_was(server: Server) -> None:
    told_on_the_next_day(server)

    other = say(server, NEW, [user("something else")])
    third = say(server, NEW, [user("and a third thing")])

    assert heard(server, other).count(NEW) == 1
    assert heard(server, third).count(NEW) == 1


def test_places_of_an_index_of_before_have_the_notes_of_their_agents(tmp_path: Path) -> None:
    path = tmp_path / "clients.db"
    index = Index(path)
    index.begin(Known("ann", "", "", "{}", "{}", named=False))
    index.note("ann", 0, [Place(b"0", "ann", 1, "mark", "{}")], '{"date": "today"}')
    index.close()
    with sqlite3.connect(path) as old:
        old.execute("alter table places drop column notes")
    old.close()

    again = Index(path)

    assert [place.notes for place in again.places([b"0"])] == ['{"date": "today"}']
    again.close()
