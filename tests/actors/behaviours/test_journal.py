"""A journal of messages, and behaviours that run on it again."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvactors.actors import (
    Agent,
    AgentBehaviour,
    AgentSystem,
    InvalidConfig,
    InvalidInput,
    Sampling,
    Supervision,
    replay,
)
from kvactors.actors.behaviours.journal import pack, read_journal, unpack

WAIT = 60
SHORT = Sampling(max_tokens=6)


class Colour(enum.Enum):
    RED = 1


class Side(enum.StrEnum):
    BUY = "buy"


class Bid(NamedTuple):
    price: int
    notes: tuple[Colour, ...]


@dataclass(frozen=True)
class Offer:
    price: int
    notes: tuple[str, ...] = ()


class Buyer(AgentBehaviour):
    """Thinks about an offer, asks the bank, answers."""

    limit = 0

    async def on_message(self, message: Offer, sender: Agent) -> None:
        reply = await self.think([message.price, 1], sampling=SHORT)
        balance = await self.ask("bank", "balance?")
        accepted = message.price + self.limit < balance
        await self.send(sender.agent_id, (accepted, reply.text))


class Seller(AgentBehaviour):
    async def on_message(self, message: Any, sender: Agent | None) -> None:
        if message == "start":
            for price in (10, 20, 30):
                await self.send("buyer", Offer(price, ("new",)))


class Bank(AgentBehaviour):
    def on_message(self, message: Any, sender: Agent | None) -> int:
        return 25


@pytest.fixture
def recorded(open_system: Callable[..., AgentSystem], tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    system = open_system(store=False, journal=path)
    for name, behaviour in (("bank", Bank()), ("buyer", Buyer()), ("seller", Seller())):
        system.spawn(name, behaviour=behaviour)
    system.spawn("seller").deliver("start")
    assert system.wait_idle(WAIT)
    system.stop()
    return path


def test_a_journal_says_who_told_whom_what_and_when(recorded: Path) -> None:
    records = list(read_journal(recorded))

    told = [(r["sender"], r["agent"]) for r in records if r["kind"] == "message"]
    assert told.count(("seller", "buyer")) == told.count(("buyer", "seller")) == 3
    assert told.count(("buyer", "bank")) == 3
    assert told[0] == (None, "seller")
    assert [r["at"] for r in records] == sorted(r["at"] for r in records)
    assert sum(r["kind"] == "turn" and r["text"] != "" for r in records) == 3


def test_a_replay_without_the_model_does_what_was_done(recorded: Path) -> None:
    again = replay(recorded, {"buyer": Buyer(), "seller": Seller()}, types=[Offer])

    assert (again.messages, again.turns, again.differences) == (7, 3, ())


def test_a_replay_takes_one_agent_after_the_other_each_in_its_own_order(recorded: Path) -> None:
    told: list[tuple[str, Any]] = []

    class Hearing(AgentBehaviour):
        def on_message(self, message: Any, sender: Any) -> None:
            told.append((self.agent_id, message))

    replay(recorded, {"buyer": Hearing(), "seller": Hearing()}, types=[Offer])

    offers = [("buyer", Offer(price, ("new",))) for price in (10, 20, 30)]
    assert told[:4] == [*offers, ("seller", "start")]
    assert next(read_journal(recorded))["agent"] == "seller"


def test_a_replay_shows_what_another_behaviour_does_differently(recorded: Path) -> None:
    careful = Buyer()
    careful.limit = 10

    again = replay(recorded, {"buyer": careful}, types=[Offer])

    [difference] = again.differences
    assert difference.startswith("buyer, message 4:")
    assert "True" in difference
    assert "False" in difference


def test_a_replay_with_the_model_compares_the_turns(
    recorded: Path, open_system: Callable[..., AgentSystem]
) -> None:
    same = open_system(store=False)
    again = replay(recorded, {"buyer": Buyer()}, types=[Offer], system=same)
    assert (again.turns, again.differences) == (3, ())

    same.spawn("buyer").ask([77] * 40, sampling=SHORT).get(timeout=WAIT)
    other = replay(recorded, {"buyer": Buyer()}, types=[Offer], system=same)
    assert other.differences


def test_classes_that_were_not_named_are_not_made(recorded: Path) -> None:
    with pytest.raises(InvalidInput, match="Offer"):
        replay(recorded, {"buyer": Buyer()})


@pytest.mark.parametrize("garbage", [b"\xc1", b"\x01\x02", b"\xa3abc"])
def test_what_is_no_journal_is_refused(tmp_path: Path, garbage: bytes) -> None:
    (tmp_path / "x").write_bytes(garbage)

    with pytest.raises(InvalidInput):
        list(read_journal(tmp_path / "x"))


def test_a_torn_journal_is_read_as_far_as_it_goes(recorded: Path) -> None:
    whole = list(read_journal(recorded))
    recorded.write_bytes(recorded.read_bytes()[:-3])

    assert list(read_journal(recorded)) == whole[:-1]


plain = st.none() | st.booleans() | st.integers() | st.text() | st.binary()
messages = st.recursive(
    plain | st.just(Colour.RED),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(), inner)
        | st.frozensets(st.integers())
        | st.builds(Offer, st.integers(), st.lists(st.text()).map(tuple))
    ),
    max_leaves=8,
)


@given(messages)
def test_messages_come_back_as_they_were(message: Any) -> None:
    assert unpack(pack(message), [Offer, Colour]) == message


@pytest.mark.parametrize("message", [Bid(3, (Colour.RED,)), Side.BUY, [{Side.BUY: Bid(1, ())}]])
def test_named_tuples_and_enums_that_are_strings_come_back_as_such(message: Any) -> None:
    assert repr(unpack(pack(message), [Bid, Colour, Side])) == repr(message)


def test_a_journal_of_an_earlier_run_is_not_written_over(
    open_system: Callable[..., AgentSystem], tmp_path: Path
) -> None:
    (tmp_path / "journal").write_bytes(b"what was said")

    with pytest.raises(InvalidConfig, match="exists"):
        open_system(store=False, journal=tmp_path / "journal")

    assert (tmp_path / "journal").read_bytes() == b"what was said"


def test_a_journal_that_cannot_be_made_leaves_no_system_behind(
    open_system: Callable[..., AgentSystem], tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(InvalidConfig, match=r"no journal can be made .* No such file"):
        open_system(journal=folder / "journal", prepare=lambda _: folder.rmdir())

    # The store is not locked any more.
    system = open_system(journal=tmp_path / "journal")
    assert system.spawn("alice").ask([1, 2], sampling=SHORT).get(timeout=WAIT)


class Clumsy(AgentBehaviour):
    """Goes on after what it asked for was refused at once."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    async def on_message(self, message: Any, sender: Agent | None) -> None:
        for wrong in (
            lambda: self.think(""),
            lambda: self.think([10**9]),
            lambda: self.think("x", timeout=-1),
            lambda: self.think("x", tokens=1),
            lambda: self.observe(""),
            lambda: self.rewind(0),
            lambda: self.send("", "x"),
            lambda: self.ask(self.agent, "x"),
            lambda: self.broadcast("x", to="bank"),
            lambda: self.publish(1, "x"),  # type: ignore[arg-type]
        ):
            try:
                wrong()
            except ValueError as error:
                self.refused.append(f"{type(error).__name__}: {error}")
        await self.observe("It rains.")
        reply = await self.think([1, 2], sampling=SHORT)
        await self.send("bank", reply.text)


@pytest.mark.parametrize("live", [False, True])
def test_what_was_refused_at_once_is_refused_again_and_the_turns_after_it_are_found(
    open_system: Callable[..., AgentSystem], tmp_path: Path, live: bool
) -> None:
    system = open_system(store=False, journal=tmp_path / "journal")
    system.spawn("bank", behaviour=Bank())
    first, again = Clumsy(), Clumsy()
    system.spawn("a", behaviour=first).request("go").get(timeout=WAIT)
    system.stop()

    other = open_system(store=False) if live else None
    found = replay(tmp_path / "journal", {"a": again}, system=other)

    assert (found.messages, found.turns, found.differences) == (1, 2, ())
    assert again.refused == first.refused
    assert len(first.refused) == 10


def test_a_replay_ends_with_the_error_behind_which_a_behaviour_was_made_anew(
    open_system: Callable[..., AgentSystem], tmp_path: Path
) -> None:
    told: list[str] = []

    class Failing(AgentBehaviour):
        def on_message(self, message: Any, sender: Agent | None) -> None:
            told.append(message)
            if message == "fail":
                raise LookupError(message)

    system = open_system(store=False, journal=tmp_path / "journal")
    agent = system.spawn("a", behaviour=Failing, supervision=Supervision("restart", backoff=0))
    for message in ("before", "fail", "behind"):
        agent.deliver(message)
    assert system.wait_idle(WAIT)
    system.stop()
    assert told == ["before", "fail", "behind"]

    told.clear()
    with pytest.raises(LookupError, match="fail"):
        replay(tmp_path / "journal", {"a": Failing()})
    assert told == ["before", "fail"]


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_behaviour_that_was_given_again_is_told_what_it_was_told_then(
    open_system: Callable[..., AgentSystem], tmp_path: Path, forgotten: bool
) -> None:
    system = open_system(store=False, journal=tmp_path / "journal")
    system.spawn("bank", behaviour=Bank())
    seller = system.spawn("seller", behaviour=Seller())
    for _ in range(2):
        system.spawn("buyer", behaviour=Buyer())
        seller.deliver("start")
        assert system.wait_idle(WAIT)
        if forgotten:
            system.forget("buyer")
        else:
            system.parts.behaviours.stop("buyer")
            system.watch("buyer").get(timeout=WAIT)
    system.stop()

    again = replay(tmp_path / "journal", {"buyer": Buyer()}, types=[Offer])

    assert (again.messages, again.turns, again.differences) == (6, 6, ())
