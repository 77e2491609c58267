"""Whose words and memory a conversation begins with while others of its kind begin, too."""

from collections.abc import Iterator

import pytest

from kvactors.actors.frontends.server.exchange.inquiry import Client, Inquiry, Message
from kvactors.actors.frontends.server.identity.index import Index, Place
from kvactors.actors.frontends.server.identity.plan import Plan
from kvactors.actors.frontends.server.identity.resolve import Resolver
from kvactors.actors.frontends.server.identity.rules import shipped_rules

RULES = "You are a careful agent."


@pytest.fixture
def index() -> Iterator[Index]:
    index = Index(None)
    yield index
    index.close()


@pytest.fixture
def resolver(index: Index) -> Resolver:
    return Resolver(index, shipped_rules(), lambda _: "no")


def begins(
    resolver: Resolver, nonce: int, busy: set[str], *, tenant: str = "", parent: str = ""
) -> Plan:
    """How a client begins whose first line is one of its own."""
    system = f"x-anthropic-billing-header: cch={nonce};\n{RULES}"
    said = Message("system", system), Message("user", f"Part {nonce}.")
    client = Client(tenant=tenant, thread=f"own {nonce}", parent=parent)
    return resolver.plan(Inquiry(said, client, ()), busy)


def test_words_are_those_of_who_is_just_beginning_and_of_nobody_from_before(
    resolver: Resolver,
) -> None:
    first = begins(resolver, 1, set())
    beside = begins(resolver, 2, {first.known.agent_id})
    later = begins(resolver, 3, set())

    assert "cch=1" in first.conversation.system
    assert "cch=1" in beside.conversation.system
    assert beside.reuse.kept == ("billing-header",)
    assert "cch=3" in later.conversation.system
    assert later.reuse.kept == ()


def test_words_of_another_key_are_nobodys(resolver: Resolver) -> None:
    first = begins(resolver, 1, set(), tenant="a")
    other = begins(resolver, 2, {first.known.agent_id}, tenant="b")

    assert "cch=2" in other.conversation.system


def test_who_is_just_being_made_is_no_parent(resolver: Resolver, index: Index) -> None:
    first = begins(resolver, 1, set())
    busy = {first.known.agent_id}
    index.begin(first.known)
    early = begins(resolver, 2, busy, parent="own 1")
    index.note(first.known, 0, [Place(b"chain", first.known.agent_id, 1, "mark", "{}")])
    late = begins(resolver, 3, busy, parent="own 1")

    assert early.parent == ""
    assert late.parent == first.known.agent_id
