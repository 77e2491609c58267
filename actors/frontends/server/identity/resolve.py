"""Who takes a turn: the agent that the conversation goes on, or a fork of the nearest one.

A request that extends an agent's conversation is its next turn. One that branches off forks the
agent at that turn, so that both stay warm, and so does one that comes while the agent is busy. The
index proposes, the ledger decides: a place counts only if the agent's last turn there is the one
that it was. On the thread of the index.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kvactors.actors.errors import AgentNotStored
from kvactors.actors.frontends.server.exchange.events import Reuse
from kvactors.actors.frontends.server.exchange.inquiry import Client, Inquiry, Message
from kvactors.actors.frontends.server.identity.canonical import prompt_mark
from kvactors.actors.frontends.server.identity.conversation import Conversation, read
from kvactors.actors.frontends.server.identity.index import Index, Known, Place, unnamed
from kvactors.actors.frontends.server.identity.plan import Plan
from kvactors.actors.frontends.server.identity.rules import Rule, standing_rules
from kvactors.core.errors import InvalidInput

__all__ = ["Resolver", "Stands"]

Stands = Callable[[Place], Literal["no", "within", "end", "cut"]]
"""Whether a place is where it was: not, within what its agent remembers, or at its end, with an
answer that may have been cut."""


_ENDS = ("end", "cut")


@dataclass(frozen=True, slots=True)
class _Found:
    """A place and its agent, which `ends` there, and may go on itself."""

    place: Place
    known: Known
    ends: bool
    goes_on: bool


class Resolver:
    """Plans turns over an `index`, by `rules`; `stands` asks the ledger."""

    def __init__(self, index: Index, rules: Sequence[Rule], stands: Stands) -> None:
        self._index = index
        self._rules = rules
        self._stands = stands
        # Who is beginning, with its system prompt and notes, by what they are compared as.
        self._begun = dict[tuple[bytes, str], tuple[str, str, str]]()

    def plan(self, inquiry: Inquiry, busy: set[str], *, alone: bool = False) -> Plan:
        """Who takes the turn of an `inquiry`, while the agents of `busy` cannot; `alone`: nobody
        that would be made of another, unless an answer is to be gone on with. Raises InvalidInput,
        and AgentNotStored for an answer that nobody knows."""
        inquiry = self._with_its_prompt(inquiry)
        asked, tenant = inquiry.goes_on, inquiry.client.tenant
        goes_on = self._index.answer(tenant, asked) if asked else None
        if asked and goes_on is None:
            raise AgentNotStored(f"no answer {asked!r} is known here")
        conversation = read(inquiry, self._rules, goes_on)
        if not conversation.said and goes_on is None:
            raise InvalidInput("there is nothing to answer: no messages")
        known = conversation.known
        found = self._nearest(inquiry, conversation, known, busy)
        if goes_on is not None and found is None:
            raise AgentNotStored(f"who gave the answer {asked!r} no longer knows it")
        plan = self._decide(inquiry, conversation, found, busy, alone=alone)
        if plan.untold and inquiry.begun is None:
            # What it said last is said again, with what has changed.
            found = self._nearest(inquiry, conversation, known[:-1], busy)
            if goes_on is None or found is not None:
                plan = self._decide(inquiry, conversation, found, busy, alone=alone)
        if plan.tell and not any(message.role == "user" for message in plan.new):
            # Nobody else is made to say it: it is told with what the user says next.
            plan = replace(plan, tell="", notes=plan.begins)
        return plan if inquiry.begun is None else plan.going_on(inquiry.begun)

    def _decide(
        self,
        inquiry: Inquiry,
        conversation: Conversation,
        found: "_Found | None",
        busy: set[str],
        *,
        alone: bool,
    ) -> Plan:
        client, place = inquiry.client, found.place if found else None
        last = place.chain if place else None
        ends = found is not None and found.ends
        miss = "" if ends else conversation.miss(last, self._index.said_behind)
        if found is None:
            return self._begin(client, conversation, busy, miss, alone=alone)
        waiting = None if inquiry.goes_on or found.goes_on else self._waiting(client, busy)
        if waiting and self._stands(replace(found.place, agent_id=waiting.agent_id)) in _ENDS:
            # It was made of who stands there.
            known = replace(waiting, tools=found.known.tools)
            found, waiting = _Found(found.place, known, ends=True, goes_on=True), None
        place, known = found.place, found.known
        kept, tell = standing_rules(self._rules, place.notes, conversation.told)
        matched = conversation.depth(place.chain)
        more = place.tools
        if inquiry.goes_on and not conversation.tools.items() <= _told(known, place).items():
            more = _tools_of(json.loads(more or "{}") | conversation.tools)
        again = matched == len(conversation.said) and not found.ends
        reuse = Reuse("again" if again else "goes on", kept, miss)
        said = conversation, tell, conversation.told, place.notes, reuse
        plan = Plan(
            known, "", place.turns, matched, *said, fresh=False, had=place.tools, tools=more
        )
        if found.goes_on:
            return plan
        if waiting or (alone and not inquiry.goes_on):
            return self._begin(client, conversation, busy, miss, alone=alone)
        mine = replace(self._anew(client, conversation.tools, busy), tools=known.tools)
        reuse = reuse if again else replace(reuse, how="forked")
        return replace(plan, known=mine, parent=known.agent_id, reuse=reuse, fresh=True)

    def _begin(
        self,
        client: Client,
        conversation: Conversation,
        busy: set[str],
        miss: str,
        *,
        alone: bool,
    ) -> Plan:
        """Who begins a conversation: the agent that its client names, if that waits for it, else a
        new one, with the words of who begins alike unless it is to be `alone`."""
        waiting = self._waiting(client, busy)
        mine = waiting or self._anew(client, conversation.tools, busy)
        begins = told = conversation.told
        parent = ""
        twin = None if waiting or alone else self._twin(mine, conversation, busy)
        if twin is not None:
            begins, parent = twin.notes, twin.agent_id
        elif not waiting:
            conversation, begins = self._as_begun(conversation, mine, busy)
            parent = "" if alone else self._relative(client, mine, busy)
        kept, tell = standing_rules(self._rules, begins, told)
        mine = replace(mine, tools=_tools_of(conversation.tools))
        # Who begins with the same words has them; without any there is nothing to have.
        forked = parent and (twin is None or conversation.system or conversation.tools)
        reuse = Reuse("forked" if forked else "new", kept, miss)
        anew = conversation, tell, told, begins, reuse
        return Plan(mine, parent, 0, 0, *anew, fresh=not waiting, alike=twin is not None)

    def _nearest(
        self, inquiry: Inquiry, said: Conversation, hashes: Sequence[bytes], busy: set[str]
    ) -> "_Found | None":
        """The longest place of `hashes` that counts: of the client's own thread, else of any; of
        those that are as long, one whose agent goes on there, else one that was told the same."""
        client, thread = inquiry.client, _thread(inquiry.client)
        name = self._name(client)
        own = {name, *(self._index.thread(client.tenant, thread) if thread else ())} - {""}
        best: _Found | None = None
        for place in self._ranked(hashes, own, busy, thread, said):
            if best is not None and (best.place.chain != place.chain or best.goes_on):
                break
            if best is not None and (not place.last or place.agent_id in busy):
                # No better than the best, and of a beginning that many share there are many.
                continue
            known = self._index.known(place.agent_id)
            if known is None or known.tenant != client.tenant:
                continue
            # Fewer tools than it was told of are no other beginning.
            if not inquiry.goes_on and not said.tools.items() <= _told(known, place).items():
                continue
            if (stands := self._stands(place)) != "no":
                ends = stands in _ENDS
                named = name == known.agent_id
                free = (named or known.thread == thread) and known.agent_id not in busy
                # What has come to its end stays, and a fork goes on with it.
                free = free and not (
                    inquiry.begun and stands == "end" and place.chain == hashes[-1]
                )
                found = _Found(place, known, ends, goes_on=ends and free)
                best = found if best is None or found.goes_on else best
        return best

    def _ranked(
        self,
        hashes: Sequence[bytes],
        own: set[str],
        busy: set[str],
        thread: str,
        conversation: Conversation,
    ) -> Iterator[Place]:
        """The places of `hashes`: of `own` agents before some of others, those of the `thread` that
        are not `busy` among them; long ones before short ones, and those first that were told what
        the `conversation` tells."""
        notes, tools = conversation.told, _tools_of(conversation.tools)
        long = {hash_: number for number, hash_ in enumerate(hashes)}

        def ranked(some: list[Place]) -> list[Place]:
            return sorted(some, key=lambda place: (-long[place.chain], place.notes != notes))

        for some in self._index.places(hashes, own):
            yield from ranked(some)
        for some in self._index.shared(hashes, thread, tools, len(busy)):
            yield from (place for place in ranked(some) if place.agent_id not in own)

    def _anew(self, client: Client, tools: dict[str, str], busy: set[str]) -> Known:
        """A new agent for a client: under the name that it asks for, if that is free."""
        name = self._name(client)
        free = bool(name) and name not in busy and self._index.known(name) is None
        mine = Known(name, client.tenant, _thread(client), _tools_of(tools), "{}", True)
        return mine if free else unnamed(mine)

    def _waiting(self, client: Client, busy: set[str]) -> Known | None:
        """The agent that a client names, if it was made for it and was told nothing yet, or knows
        nothing any more."""
        known = self._own(client)
        if known is None or known.agent_id in busy:
            return None
        empty = Place(b"", known.agent_id, 0, prompt_mark(None), "")
        if self._index.begun(known.agent_id) and self._stands(empty) != "end":
            return None
        return known

    def _own(self, client: Client) -> Known | None:
        """The agent that a client names, if it is its own."""
        known = self._index.known(self._name(client)) if client.agent else None
        return known if known is not None and known.tenant == client.tenant else None

    def _with_its_prompt(self, inquiry: Inquiry) -> Inquiry:
        """With the system prompt that the agent was made with which its client names, if the client
        says none."""
        known, said = self._own(inquiry.client), inquiry.messages
        says = inquiry.goes_on or (said and said[0].role == "system")
        if known is None or not known.prompt or says:
            return inquiry
        return replace(inquiry, messages=(Message("system", known.prompt), *said))

    def _name(self, client: Client) -> str:
        """The system's id of the agent that a client names, if it does: names are a key's own."""
        known = self._index.known(client.agent) if client.agent else None
        own = known is not None and known.tenant == client.tenant
        if own or not client.agent or not client.tenant:
            return client.agent
        return f"{client.tenant}/{client.agent}"

    def _twin(self, mine: Known, conversation: Conversation, busy: set[str]) -> Place | None:
        """The beginning of an agent with the same system prompt and tools, rather of one that has
        time."""
        twin: Place | None = None
        tools = _tools_of(conversation.tools)
        for place in self._index.beginnings(conversation.before, tools):
            free = place.agent_id not in busy
            wanted = place.agent_id != mine.agent_id and (free or twin is None)
            if wanted and self._stands(place) != "no":
                twin = place
                if free:
                    break
        return twin

    def _as_begun(
        self, conversation: Conversation, mine: Known, busy: set[str]
    ) -> tuple[Conversation, str]:
        """The conversation with the words of who begins alike just now, if there is somebody, and
        the notes that they tell."""
        self._begun = {alike: who for alike, who in self._begun.items() if who[0] in busy}
        alike = conversation.before, json.dumps(conversation.tools)
        here = mine.agent_id, conversation.system, conversation.told
        _, system, told = self._begun.setdefault(alike, here)
        return replace(conversation, system=system), told

    def _relative(self, client: Client, mine: Known, busy: set[str]) -> str:
        """Whom a new agent comes from by what its client says: the thread that it names as its
        parent, or its own; nobody who is just being made."""
        for thread in (client.parent and f"thread:{client.parent}", _thread(client)):
            family = self._index.thread(client.tenant, thread) if thread else []
            for agent in family:
                if agent != mine.agent_id and (agent not in busy or self._index.begun(agent)):
                    return agent
        return ""


def _told(known: Known, place: Place) -> dict[str, str]:
    """The tools that an agent was told of up to a place."""
    return {**json.loads(known.tools), **json.loads(place.tools or "{}")}


def _tools_of(tools: dict[str, str]) -> str:
    """As the index has them: their order is no difference."""
    return json.dumps(tools, sort_keys=True)


def _thread(client: Client) -> str:
    """The client's own conversation, by the first thing that names it."""
    kinds = {"agent": client.agent, "thread": client.thread, "cache": client.cache_key}
    return next((f"{kind}:{value}" for kind, value in kinds.items() if value), "")
