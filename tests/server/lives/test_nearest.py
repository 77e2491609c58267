"""Who goes a conversation on, of all who know some of it, and how much is looked at for that."""

import json
import sqlite3
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvactors.actors.frontends.server.exchange.events import Reuse
from kvactors.actors.frontends.server.exchange.inquiry import Client, Inquiry, Message, Role, Tool
from kvactors.actors.frontends.server.identity.canonical import canonical, tool_marks
from kvactors.actors.frontends.server.identity.conversation import read
from kvactors.actors.frontends.server.identity.index import SOME, Index, Known, Place
from kvactors.actors.frontends.server.identity.resolve import Resolver
from kvactors.actors.frontends.server.identity.sealed import Sealed

MESSAGES = 30
Standing = Literal["no", "within", "end", "cut"]
AGENTS = st.lists(
    st.tuples(
        st.integers(0, MESSAGES - 1),
        st.sampled_from(["mine", "another"]),
        st.sampled_from(["no", "within", "end", "cut"]),
        st.booleans(),
    ),
    max_size=6,
)


class Counting(Sealed):
    """Counts what is read."""

    reads = 0

    def read(self, written: str | bytes) -> str:
        self.reads += 1
        return super().read(written)


def conversation(
    many: int, thread: str = "mine", *tools: Tool
) -> tuple[Inquiry, tuple[bytes, ...]]:
    """A conversation of so `many` messages, and a hash of it up to each."""
    roles: tuple[Literal["user", "assistant"], ...] = ("user", "assistant")
    said = tuple(Message(roles[n % 2], f"message {n}") for n in range(many))
    inquiry = Inquiry(said, Client(thread=thread), tools)
    return inquiry, read(inquiry, (), None).hashes


def knows(index: Index, agent: str, thread: str, *places: Place, tools: str = "{}") -> None:
    known = Known(agent, "", thread and f"thread:{thread}", tools, "{}", named=False)
    index.begin(known)
    index.note(known, 0, places)


@given(AGENTS)
def test_it_is_who_knows_most_of_it_among_the_clients_own_agents_and_else_among_all(
    agents: list[tuple[int, str, Standing, bool]],
) -> None:
    inquiry, hashes = conversation(MESSAGES)
    index, standing, busy = Index(None), dict[str, Standing](), set[str]()
    ranks, free = dict[str, tuple[bool, int]](), set[str]()
    for number, (depth, thread, stands, is_busy) in enumerate(agents):
        name = f"agent {number}"
        knows(index, name, thread, Place(hashes[depth], name, depth + 1, "", "{}"))
        standing[name] = stands
        if is_busy:
            busy.add(name)
        if stands != "no":
            ranks[name] = thread == "mine", depth
        # The conversation ends with an answer: where that had ended a fork goes on with it.
        ended = depth == MESSAGES - 1 and stands == "end"
        if stands in ("end", "cut") and thread == "mine" and not is_busy and not ended:
            free.add(name)
    best = max(ranks.values(), default=None)
    nearest = {name for name, rank in ranks.items() if rank == best}

    plan = Resolver(index, (), lambda place: standing[place.agent_id]).plan(inquiry, busy)

    if best is None:
        assert plan.fresh
        assert plan.keep == 0
    else:
        assert plan.keep + plan.own == best[1] + 1
        going_on = nearest & free
        assert plan.known.agent_id in going_on if going_on else plan.parent in nearest
    index.close()


def test_of_a_long_conversation_that_goes_on_its_end_alone_is_looked_at() -> None:
    inquiry, hashes = conversation(2001)
    sealed = Counting()
    index = Index(None, sealed=sealed)
    known = [Place(hash_, "one", n, "", "{}") for n, hash_ in enumerate(hashes[:-1], 1)]
    knows(index, "one", "mine", *known)
    sealed.reads = 0

    plan = Resolver(index, (), lambda _: "end").plan(inquiry, set())

    assert (plan.known.agent_id, plan.keep) == ("one", 2000)
    assert sealed.reads < 50
    index.close()


def crowd(index: Index, many: int, name: str, *hashes: bytes) -> list[str]:
    """So `many` agents without a thread, called by a `name` and a number, that all know `hashes`;
    each goes on in its own way if its `name` is "gone"."""
    agents = [f"{name} {number:04}" for number in range(many)]
    for agent in agents:
        known = (*hashes, agent.encode()) if name == "gone" else hashes
        knows(index, agent, "", *(Place(h, agent, n, "", "{}") for n, h in enumerate(known, 1)))
    return agents


def test_of_many_who_share_a_first_message_some_are_looked_at() -> None:
    inquiry, hashes = conversation(3)
    sealed = Counting()
    index = Index(None, sealed=sealed)
    crowd(index, 10 * SOME, "gone", hashes[0])
    knows(index, "mine", "mine", Place(hashes[0], "mine", 1, "", "{}"))
    sealed.reads = 0

    plan = Resolver(index, (), lambda _: "within").plan(inquiry, set())

    assert (plan.parent, plan.keep) == ("mine", 1)
    assert sealed.reads < 2 * SOME
    index.close()


def test_of_very_many_who_know_the_same_one_who_ends_there_and_is_free_goes_on() -> None:
    said, hashes = conversation(3, "")
    index = Index(None)
    crowd(index, 2 * SOME, "gone", *hashes[:2])
    *busy, free = crowd(index, 2 * SOME, "here", *hashes[:2])

    plan = Resolver(index, (), lambda at: "end" if at.last else "within").plan(said, set(busy))

    assert (plan.known.agent_id, plan.keep, plan.fresh) == (free, 2, False)
    index.close()


def test_of_very_many_who_end_there_one_who_has_the_tools_that_are_asked_for_goes_on() -> None:
    edit = Tool("edit")
    said, hashes = conversation(3, "", edit)
    index = Index(None)
    crowd(index, 4 * SOME, "here", *hashes[:2])
    mine = (Place(hash_, "with tools", n, "", "{}") for n, hash_ in enumerate(hashes[:2], 1))
    knows(index, "with tools", "", *mine, tools=json.dumps(tool_marks([edit])))

    plan = Resolver(index, (), lambda at: "end" if at.last else "within").plan(said, set())

    assert (plan.known.agent_id, plan.keep, plan.fresh) == ("with tools", 2, False)
    index.close()


def test_who_ends_where_is_known_of_an_index_of_before(tmp_path: Path) -> None:
    path = tmp_path / "clients.db"
    _, hashes = conversation(3)
    index = Index(path)
    crowd(index, 1, "here", *hashes)
    index.close()
    with sqlite3.connect(path) as old:
        old.executescript("drop index ends_with; alter table agents drop column ends")
    old.close()

    again = Index(path)

    found = [place for some in again.shared(hashes, "", "{}", 0) for place in some]
    assert [place.turns for place in found] == [3, 2, 1]
    assert [place.turns for place in found if place.last] == [3]
    again.close()


def chat(*texts: str, last: Role = "user") -> Inquiry:
    """A conversation of these texts; who says the `last` one."""
    *said, end = texts
    return Inquiry((*(Message("user", text) for text in said), Message(last, end)))


def reused(asked: Inquiry, *known: Inquiry) -> Reuse:
    """How a conversation is matched where others are `known`."""
    index = Index(None)
    for number, inquiry in enumerate(known):
        found = read(inquiry, (), None)
        chains = (found.before, *found.hashes)
        name = f"agent {number}"
        knows(index, name, "", *(Place(h, name, n, "", "{}") for n, h in enumerate(chains)))
        index.note_said(chains, [canonical(message) for message in found.said])
    plan = Resolver(index, (), lambda _: "within").plan(asked, set())
    index.close()
    return plan.reuse


def test_who_begins_as_nobody_does_is_new_and_differs_from_nobody() -> None:
    reuse = reused(chat("What is my cat called?"), chat("Peter lives in Rome."))

    assert reuse == Reuse("new")


@pytest.mark.parametrize(
    ("asked", "miss"),
    [
        (chat("My cat", "Bye"), "message 0, character 3: 'cat' instead of 'dog'"),
        (chat("My dog", "Bye"), "message 1, character 0: 'Bye' instead of 'Say 0.'"),
        (chat("My dog", "Say 1."), "message 1, character 4: '1.' instead of '0.'"),
        (chat("My dog", "Say 0. Go on"), "message 1, character 6: ' Go on' instead of ''"),
        (chat("My dog", 'Say "1."'), "message 1, character 4: '\"1.\"' instead of '0.'"),
        (
            chat("My dog", "Say 0.", last="system"),
            "message 1, character 6: 'system' instead of 'user'",
        ),
    ],
)
def test_a_difference_is_told_by_its_place_in_the_text_of_who_is_nearest(
    asked: Inquiry, miss: str
) -> None:
    assert reused(asked, chat("My dog", "Say 0."), chat("Peter", "Say 0.")).miss == miss
