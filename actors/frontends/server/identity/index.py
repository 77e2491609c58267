"""Which agent knows which conversation: hashes on disk, beside the ledgers. One thread at a time.

A place says that an agent's first `turns` turns are a conversation, by its hash. The index
proposes, the ledger decides. With it is lost which agent a client has, and the responses that are
kept, never a turn: clients begin with new agents then. It holds no text but the prompts that agents
were made with, what rules note of them and, if `texts` says so, what the report of a miss shows:
sealed where the store is. Names (of agents, of clients' threads, of tools) and hashes never are.
"""

import secrets
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvactors.actors.frontends.server.identity.sealed import Sealed
from kvactors.actors.frontends.server.identity.tables import ENDS, locked, opened

__all__ = ["Index", "Known", "Place", "unnamed"]

# Of those that are alike so many are looked at, for there may be any number.
SOME = 64
# Conversations whose places are looked for at once: those that are longest, and the others.
FIRST_PART, LATER_PARTS = 8, 500

# Of more than a mere beginning; the plus: they are found by their chains, not by their turns.
_PLACES = (
    "select chain, agent, turns, mark, notes, tools,"
    " chain = (select ends from agents where agents.agent = places.agent)"
    " from places where +turns > 0"
)


@dataclass(frozen=True, slots=True)
class Place:
    """The first `turns` turns of an agent are the conversation of the hash `chain`. `mark` is the
    hash of these turns' tokens, `notes` what it was told up to there, by rule, and `tools` those it
    did not begin with, as JSON both. `last`: none of the agent's places is behind it."""

    chain: bytes
    agent_id: str
    turns: int
    mark: str
    notes: str
    tools: str = ""
    last: bool = True


@dataclass(frozen=True, slots=True)
class Known:
    """An agent that clients made: the `tools` that it began with, by name, and what notes it was
    told at last, by rule, as JSON both. `prompt`: the system prompt that it was made with for
    whoever names it; `used` last then, in seconds since 1970."""

    agent_id: str
    tenant: str
    thread: str
    tools: str
    notes: str
    named: bool
    prompt: str = ""
    used: float = field(default=0.0, compare=False)


def unnamed(known: Known) -> Known:
    """The same client's agent, under a name that nobody asked for."""
    return replace(known, agent_id=f"c-{secrets.token_hex(8)}", named=False, prompt="")


class Index:
    """Of one store, in the file `path`, or in memory; `texts`: keep what was said for the report
    of a miss, `sealed` if the store is; `clock` gives seconds since 1970. Raises InvalidConfig
    where another server has the file: who is busy, one server knows."""

    def __init__(
        self,
        path: Path | None,
        *,
        texts: bool = True,
        sealed: Sealed = Sealed(),  # noqa: B008 - immutable
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.sealed = sealed
        self._texts = texts
        self._clock = clock
        self._lock = None if path is None else locked(path)
        try:
            self._db = opened(path)
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise

    @property
    def connection(self) -> sqlite3.Connection:
        """The open file, for what else is kept in it; on the thread of the index alone."""
        return self._db

    def close(self) -> None:
        """Close the file; twice is as good as once."""
        self._db.close()
        if self._lock is not None:
            self._lock.release()

    # -- reading -----------------------------------------------------------------------

    def places(self, chains: Sequence[bytes], agents: Collection[str]) -> Iterator[list[Place]]:
        """All places of `agents` of conversations `chains`, each longer than the one before, but
        mere beginnings, in parts, those of the longest first: as a rule it is one of these that is
        looked for."""
        for some in _parts(chains) if agents else ():
            rows = self._db.execute(
                f"{_PLACES} and chain in ({_marks(some)}) and agent in ({_marks(agents)})",
                (*some, *agents),
            ).fetchall()
            yield [self._place(*row) for row in rows]

    def shared(
        self, chains: Sequence[bytes], thread: str, tools: str, busy: int
    ) -> Iterator[list[Place]]:
        """As `places`, but some of anybody's, one of the `chains` after the other. Of agents of the
        `thread` that end there so many more are among them as are `busy`, and as many of those that
        have these `tools`, as JSON."""
        for chain in _noted(self._db, chains):
            rows = self._db.execute(
                f"{_PLACES} and chain = :chain and agent in ("
                f"select * from (select agent from places where chain = :chain limit {SOME}) union"
                " select * from (select agent from agents where ends = :chain and thread = :thread"
                " limit :ending) union"
                " select * from (select agent from agents where ends = :chain and thread = :thread"
                " and tools = :tools limit :ending))",
                {"chain": chain, "thread": thread, "tools": tools, "ending": SOME + busy},
            ).fetchall()
            yield [self._place(*row) for row in rows]

    def beginnings(self, chain: bytes, tools: str) -> list[Place]:
        """Some of the places where agents with these `tools`, as JSON, begin as `chain` says."""
        rows = self._db.execute(
            "select chain, places.agent, turns, mark, places.notes, places.tools from places"
            " join agents on agents.agent = places.agent"
            f" where chain = ? and turns = 0 and agents.tools = ? limit {SOME}",
            (chain, tools),
        )
        return [self._place(*row) for row in rows]

    def known(self, agent_id: str) -> Known | None:
        """An agent of this id, if a client made it."""
        row = self._db.execute(
            "select agent, tenant, thread, tools, notes, named, prompt, used from agents"
            " where agent = ?",
            (agent_id,),
        ).fetchone()
        if row is None:
            return None
        known, read = Known(*row), self.sealed.read
        return replace(known, notes=read(known.notes), prompt=read(known.prompt))

    def begun(self, agent_id: str) -> bool:
        """Whether an agent knows any conversation."""
        places = self._db.execute("select 1 from places where agent = ? limit 1", (agent_id,))
        return places.fetchone() is not None

    def of_tenant(self, tenant: str) -> set[str]:
        """The agents that an API key made."""
        rows = self._db.execute("select agent from agents where tenant = ?", (tenant,))
        return {agent for (agent,) in rows}

    def thread(self, tenant: str, thread: str) -> list[str]:
        """Agents of a client's own conversation, those used last; at the end who took no turn."""
        rows = self._db.execute(
            "select agent from agents where tenant = ? and thread = ?"
            f" order by ends = x'', used desc limit {SOME}",
            (tenant, thread),
        )
        return [agent for (agent,) in rows]

    def answer(self, tenant: str, answer_id: str) -> bytes | None:
        """The conversation that ends with an answer, by the answer's id."""
        row = self._db.execute(
            "select chain from answers where answer = ? and tenant = ?", (answer_id, tenant)
        ).fetchone()
        return None if row is None else bytes(row[0])

    def said_behind(self, chain: bytes) -> list[str]:
        """What was said next in conversations that begin with that of `chain`."""
        rows = self._db.execute("select text from said where parent = ? limit 8", (chain,))
        return [self.sealed.read(text) for (text,) in rows]

    def idle(self, before: float) -> list[str]:
        """Agents without a name of their own that were last used before a time, oldest first."""
        idle = "select agent from agents where not named and used < ? order by used"
        return [agent for (agent,) in self._db.execute(idle, (before,))]

    def _place(self, *row: Any) -> Place:
        place = Place(*row)
        return replace(place, notes=self.sealed.read(place.notes))

    # -- writing -----------------------------------------------------------------------

    def begin(self, known: Known) -> None:
        """An agent is made for a client; nothing is known of it yet."""
        with self._db:
            self._db.execute(
                "insert or replace into agents values (?, ?, ?, ?, ?, ?, ?, ?, x'')",
                (known.agent_id, known.tenant, known.thread, known.tools,
                 self.sealed.write(known.notes), known.named, self._clock(),
                 known.prompt and self.sealed.write(known.prompt)),
            )  # fmt: skip

    def touch(self, agent_id: str) -> None:
        """An agent is used, otherwise than by a conversation that is noted."""
        with self._db:
            self._db.execute(
                "update agents set used = max(used, ?) where agent = ?", (self._clock(), agent_id)
            )

    def note(self, known: Known, keep: int, places: Iterable[Place], answer_id: str = "") -> None:
        """An agent took a turn behind its first `keep` turns, and has these `places` now, the last
        its end; it began with the tools that are `known`, and was told the notes. `answer_id` names
        what it answered there."""
        agent_id, places, now = known.agent_id, list(places), self._clock()
        seal = self.sealed.write
        with self._db:
            left = self._leave(agent_id, keep)
            self._db.executemany(
                "insert or replace into places values (?, ?, ?, ?, ?, ?)",
                [(p.chain, agent_id, p.turns, p.mark, seal(p.notes), p.tools) for p in places],
            )
            self._db.execute(
                f"update agents set notes = ?, tools = ?, used = max(used, ?), ends = {ENDS}"
                " where agent = ?",
                (seal(known.notes), known.tools, now, agent_id),
            )
            if left:
                # Nobody can go on with what it answered there.
                self._db.execute(
                    "delete from answers where agent = ? and not exists"
                    " (select 1 from places where places.chain = answers.chain)",
                    (agent_id,),
                )
            if answer_id and places:
                tenant = "(select tenant from agents where agent = ?)"
                self._db.execute(
                    f"insert or replace into answers values (?, {tenant}, ?, ?, ?)",
                    (answer_id, agent_id, places[-1].chain, agent_id, now),
                )

    def note_said(self, chains: Sequence[bytes], texts: Sequence[str]) -> None:
        """`texts` were said, each behind the ones before it; `chains` are one more."""
        if self._texts:
            with self._db:
                self._db.executemany(
                    "insert or ignore into said values (?, ?, ?)",
                    zip(chains[1:], chains, map(self.sealed.write, texts), strict=False),
                )

    def forget(self, agent_id: str) -> None:
        """The agent is no more."""
        with self._db:
            self._leave(agent_id, -1)
            for table in ("agents", "answers"):
                self._db.execute(f"delete from {table} where agent = ?", (agent_id,))

    def _leave(self, agent_id: str, keep: int) -> bool:
        """No places of an agent behind its first `keep` turns, nor what nobody else said there: by
        its own places, for a look at all that was ever said takes as long as there is of it.
        Whether there were any."""
        self._db.execute(
            "delete from said where chain in (select chain from places as mine"
            " where agent = ? and turns > ? and not exists (select 1 from places as other"
            " where other.chain = mine.chain and other.agent <> mine.agent))",
            (agent_id, keep),
        )
        left = "delete from places where agent = ? and turns > ?"
        return self._db.execute(left, (agent_id, keep)).rowcount > 0


def _parts(chains: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    end, many = len(chains), FIRST_PART
    while end > 0:
        yield chains[max(0, end - many) : end]
        end, many = end - many, LATER_PARTS


def _noted(database: sqlite3.Connection, chains: Sequence[bytes]) -> Iterator[bytes]:
    """Those that there are places of, the last first."""
    for some in _parts(chains):
        rows = database.execute(
            f"with asked(chain) as (values {','.join(['(?)'] * len(some))}) select chain"
            " from asked where exists (select 1 from places where chain = asked.chain)",
            some,
        )
        noted = {chain for (chain,) in rows}
        yield from (chain for chain in reversed(some) if chain in noted)


def _marks(values: Collection[object]) -> str:
    return ",".join("?" * len(values))
