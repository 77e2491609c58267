"""Who goes a conversation on, of all who know some of it, and how much is looked at for that."""

from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from kvactors.actors.frontends.server.exchange.inquiry import Client, Inquiry, Message
from kvactors.actors.frontends.server.identity.conversation import read
from kvactors.actors.frontends.server.identity.index import Index, Known, Place
from kvactors.actors.frontends.server.identity.resolve import Resolver
from kvactors.actors.frontends.server.identity.sealed import Sealed

MESSAGES = 30
Standing = Literal["no", "within", "end"]
AGENTS = st.lists(
    st.tuples(
        st.integers(0, MESSAGES - 1),
        st.sampled_from(["mine", "another"]),
        st.sampled_from(["no", "within", "end"]),
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


def conversation(many: int, thread: str = "mine") -> tuple[Inquiry, tuple[bytes, ...]]:
    """A conversation of so `many` messages, and a hash of it up to each."""
    roles: tuple[Literal["user", "assistant"], ...] = ("user", "assistant")
    said = tuple(Message(roles[n % 2], f"message {n}") for n in range(many))
    inquiry = Inquiry(said, Client(thread=thread))
    return inquiry, read(inquiry, (), None).hashes


def knows(index: Index, agent: str, thread: str, *places: Place) -> None:
    known = Known(agent, "", f"thread:{thread}", "{}", "{}", named=False)
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
        if stands == "end" and thread == "mine" and not is_busy:
            free.add(name)
    best = max(ranks.values(), default=None)
    nearest = {name for name, rank in ranks.items() if rank == best}

    plan = Resolver(index, (), lambda place: standing[place.agent_id]).plan(inquiry, busy)

    if best is None:
        assert plan.fresh
        assert plan.keep == 0
    else:
        assert plan.keep == best[1] + 1
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
