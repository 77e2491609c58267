"""What changed in a system prompt is told once to whoever has not heard it, wherever a conversation
branches off."""

import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
from chats import post
from inside import system_of

from kvactors.actors.frontends.server.identity.index import Index, Known, Place
from kvactors.actors.frontends.server.identity.rules import standing_rules
from kvactors.actors.frontends.server.identity.sealed import Sealed
from kvactors.actors.frontends.server.web.serve import Server

RULES = "Be careful. " * 30
OLD, NEW = "2026-11-22", "2026-11-23"
Said = list[dict[str, Any]]


def say(server: Server, day: str, said: Said) -> httpx.Response:
    system = {"role": "system", "content": f"{RULES}\nToday's date is {day}"}
    answer = post(server, {"messages": [system, *said], "max_tokens": 4, "temperature": 0})
    assert answer.status_code == 200, answer.text
    return answer


def heard(server: Server, answer: httpx.Response) -> str:
    """All that the agent of an answer remembers."""
    return system_of(server).spawn(answer.headers["x-kvactors-agent"]).transcript().text


def transcript(server: Server, answer: httpx.Response) -> list[tuple[str, str]]:
    turns = system_of(server).spawn(answer.headers["x-kvactors-agent"]).transcript().turns
    return [(turn.role, turn.text) for turn in turns]


def reply_of(answer: Any) -> dict[str, Any]:
    return dict(answer.json()["choices"][0]["message"])


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


def test_the_same_question_on_the_next_day_is_asked_again_with_the_new_date(
    server: Server,
) -> None:
    question = [user("what day is it?")]
    say(server, OLD, question)

    again = say(server, NEW, question)
    third = say(server, NEW, question)

    assert "forked" in again.headers["x-kvactors-reused"]
    # Who was told the same is found first: nobody hears it twice.
    assert [heard(server, answer).count(NEW) for answer in (again, third)] == [1, 1]


def test_nobody_but_the_user_is_made_to_tell_what_has_changed(server: Server) -> None:
    first = [user("hello")]
    say(server, OLD, first)
    edited = [*first, {"role": "assistant", "content": "edited answer"}]
    call = {"id": "x1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    looked = {"role": "assistant", "content": "", "tool_calls": [call]}
    found = {"role": "tool", "tool_call_id": "x1", "content": '{"a": 1}'}

    one = say(server, NEW, [*edited, user("go on")])
    other = say(server, NEW, [*first, looked, found])
    assert NEW not in heard(server, other)
    later = say(server, NEW, [*first, looked, found, reply_of(other), user("and then?")])

    said = transcript(server, one)
    assert next(text for _, text in said if "edited" in text).strip() == "edited answer"
    assert any(role == "user" and NEW in text and "go on" in text for role, text in said)
    assert any(role == "user" and NEW in text for role, text in transcript(server, later))


def test_a_branch_from_before_the_user_told_it_is_told_what_has_changed(server: Server) -> None:
    first = [user("look around")]
    say(server, OLD, first)
    call = {"id": "x2", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    looked = {"role": "assistant", "content": "", "tool_calls": [call]}
    begun: Said = [*first, looked, {"role": "tool", "tool_call_id": "x2", "content": '{"a": 2}'}]
    told = say(server, NEW, [*begun, user("go on")])

    branches = [say(server, day, [*begun, user("or rather this")]) for day in (NEW, OLD)]

    assert all("forked" in branch.headers["x-kvactors-reused"] for branch in branches)
    assert [heard(server, answer).count(NEW) for answer in (told, *branches)] == [1, 1, 0]


def test_lines_of_documents_are_no_dates_of_today(server: Server) -> None:
    def about(day: str) -> str:
        document = f"Date: {day}\nTimestamp: {day} 10:00\nNow: {day} it rains."
        system = {"role": "system", "content": f"{RULES}\n{document}"}
        body = {"messages": [system, user("what is it about?")], "max_tokens": 4}
        return heard(server, post(server, body))

    about("3 March 2021")

    assert "9 August 2024" in about("9 August 2024")


LINES = (
    "- The current date and time is: {}T11:36:15Z",
    "The current date and time is: {}",
    "Today is {}.",
    "The current date is {}",
)


@pytest.mark.parametrize("line", LINES)
def test_todays_date_is_known_by_the_lines_that_frameworks_write(server: Server, line: str) -> None:
    def said(day: str) -> httpx.Response:
        system = {"role": "system", "content": f"{RULES}\n{line.format(day)}\nBe brief."}
        return post(server, {"messages": [system, user("hello")], "max_tokens": 4})

    said(OLD)
    other = said(NEW)

    assert other.headers["x-kvactors-kept"] == "date"
    assert f"Today's date is now {line.format(NEW).split('is')[1].strip(': ')}" in heard(
        server, other
    )


def test_what_today_is_else_is_no_date(server: Server) -> None:
    def said(day: str) -> httpx.Response:
        system = {"role": "system", "content": f"{RULES}\nToday is a {day} for all of us."}
        return post(server, {"messages": [system, user("hello")], "max_tokens": 4})

    said("holiday")

    assert "x-kvactors-kept" not in said("working day").headers


def test_of_two_dates_neither_is_taken_for_todays(server: Server) -> None:
    def said(day: str) -> httpx.Response:
        dates = f"Today's date is {day}\nToday's date is 2001-01-01"
        system = {"role": "system", "content": f"{RULES}\n{dates}"}
        return post(server, {"messages": [system, user("hello")], "max_tokens": 4})

    said(OLD)
    other = said(NEW)

    assert "x-kvactors-kept" not in other.headers
    assert f"Today's date is {NEW}\nToday's date is 2001-01-01" in heard(server, other)


def test_places_of_an_index_of_before_have_the_notes_of_their_agents(tmp_path: Path) -> None:
    path = tmp_path / "clients.db"
    index = Index(path)
    ann = Known("ann", "", "", "{}", '{"date": "today"}', named=False)
    index.begin(ann)
    index.note(ann, 0, [Place(b"0", "ann", 1, "mark", "{}")])
    index.close()
    with sqlite3.connect(path) as old:
        old.execute("alter table places drop column notes")
    old.close()

    again = Index(path)

    assert [place.notes for some in again.shared([b"0"], "", "{}", 0) for place in some] == [
        '{"date": "today"}'
    ]
    again.close()


def test_notes_of_before_they_were_sealed_are_read_and_without_the_key_none(tmp_path: Path) -> None:
    path, sealed = tmp_path / "clients.db", Sealed(bytes(32))
    told = '{"values": {"date": "today"}, "tools": []}'

    def noted(name: str, index: Index) -> set[str]:
        """What the `index` has noted, once an agent of this `name` is noted too."""
        known = Known(name, "", "", "{}", told, named=False)
        index.begin(known)
        index.note(known, 0, [Place(b"0", name, 1, "mark", told)])
        found = {place.notes for some in index.shared([b"0"], "", "{}", 0) for place in some}
        ann = index.known("ann")
        assert ann is not None
        index.close()
        return found | {ann.notes}

    assert noted("ann", Index(path)) == {told}
    assert noted("emma", Index(path, sealed=sealed)) == {told}
    assert noted("marco", Index(path)) == {told, ""}
    assert standing_rules((), "", told) == (("date",), "")


PLAN = "<system-reminder>\n# Plan Mode - System Reminder\n\nYou only read.\n</system-reminder>\n"
BUILD = "<system-reminder>\nYour operational mode has changed.\n</system-reminder>"


def test_what_stands_behind_the_last_question_alone_is_no_difference_in_earlier_ones(
    server: Server,
) -> None:
    planned = say(server, OLD, [user("plan it" + PLAN)])
    said = [user("plan it"), reply_of(planned)]

    built = say(server, OLD, [*said, user("build it" + BUILD)])

    assert "goes on" in built.headers["x-kvactors-reused"]
    assert "only read" in heard(server, built)
    assert "has changed" in heard(server, built)


@pytest.mark.parametrize("now", ["", BUILD])
@pytest.mark.parametrize("later", [False, True])
def test_a_question_that_is_asked_again_is_asked_with_what_stands_behind_it_now(
    server: Server, now: str, *, later: bool
) -> None:
    begun = [user("hello"), reply_of(say(server, OLD, [user("hello")]))] if later else []
    say(server, OLD, [*begun, user("do it" + PLAN)])

    again = say(server, OLD, [*begun, user("do it" + now)])

    assert ("has changed" in heard(server, again)) is bool(now)
    assert "only read" not in heard(server, again)


@pytest.mark.parametrize("quoted", [PLAN[:-24] + "of Ada", PLAN + "What is that? Ada"])
def test_what_only_quotes_it_is_another_question(server: Server, quoted: str) -> None:
    answer = reply_of(say(server, OLD, [user(quoted)]))

    other = say(server, OLD, [user(quoted.replace("Ada", "Ben")), answer, user("go on")])

    assert "Ben" in heard(server, other)
    assert "Ada" not in heard(server, other)
