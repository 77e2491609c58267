"""What clients ask back by its id: responses and conversations, in the file of the index.

A record is a response or a conversation; its items are what the response was asked with, or what
the conversation holds. What is oldest leaves, by age, count and bytes, and with an agent what it
answered. The SQL runs where `run` runs it: on the thread of the index.
"""

import json
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from kvactors.actors.frontends.server.identity.sealed import Sealed
from kvactors.actors.frontends.server.wire.responses.telling import PREFIX

__all__ = ["ResponseStore"]

_T = TypeVar("_T")
_DAY = 86400.0
_TABLES = f"""
pragma foreign_keys = on;
create table if not exists records(
    id text primary key, tenant text not null, changed real not null, bytes integer not null,
    content text not null) without rowid;
create index if not exists records_changed on records(changed, bytes);
create table if not exists items(
    owner text not null references records(id) on delete cascade, place integer not null,
    id text not null, content text not null, primary key(owner, place), unique(owner, id))
    without rowid;
create index if not exists items_id on items(id);
create trigger if not exists forgotten after delete on agents begin
    delete from items where owner in
        (select '{PREFIX}' || answer from answers where agent = old.agent);
    delete from records where id in
        (select '{PREFIX}' || answer from answers where agent = old.agent);
end;
"""
Item = dict[str, Any]


class Run(Protocol):
    """Does work on the thread of a connection."""

    def __call__(self, work: Callable[[], _T]) -> Awaitable[_T]: ...


class ResponseStore:
    """Records behind a `connection`, which `run` uses. At most `most` stay, of `most_bytes` in all,
    for `days` after their last change, `sealed` if the store is; `clock` gives seconds since
    1970."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        run: Run,
        *,
        sealed: Sealed = Sealed(),  # noqa: B008 - immutable
        most: int = 10_000,
        most_bytes: int = 1 << 30,
        days: float = 30,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._db = connection
        self._sealed = sealed
        self._run = run
        self._most = most
        self._most_bytes = most_bytes
        self._seconds = days * _DAY
        self._clock = clock
        self._db.executescript(_TABLES)

    async def keep(
        self, tenant: str, record_id: str, content: Item, items: Sequence[Item] = ()
    ) -> None:
        """Keep a `tenant`'s record `record_id`, new or with new `content`, and append `items`, each
        with an id."""

        def work() -> None:
            with self._db:
                self._db.execute(
                    "insert into records values (?, ?, ?, 0, ?) on conflict(id) do update set"
                    " changed = excluded.changed, content = excluded.content",
                    (record_id, tenant, self._clock(), self._dump(content)),
                )
                self._append(record_id, items)
                self._bound()

        await self._run(work)

    async def find(self, tenant: str, record_id: str) -> Item | None:
        """A record, if the tenant has it."""
        query = "select content from records where id = ? and tenant = ? and changed >= ?"
        return await self._first(query, record_id, tenant)

    async def items(self, record_id: str) -> list[Item]:
        """The items of a record, in order."""

        def work() -> list[Item]:
            rows = self._db.execute(
                "select content from items where owner = ? order by place", (record_id,)
            )
            return [json.loads(self._sealed.read(content)) for (content,) in rows]

        return await self._run(work)

    async def item(self, tenant: str, item_id: str) -> Item | None:
        """An item of this id that a record of the tenant has: of the one that changed last."""
        query = (
            "select items.content from items join records on records.id = owner"
            " where items.id = ? and tenant = ? and changed >= ? order by changed desc"
        )
        return await self._first(query, item_id, tenant)

    async def _first(self, query: str, its_id: str, tenant: str) -> Item | None:
        """The first content that a `query` finds by an id and a tenant, of what still counts."""

        def work() -> Item | None:
            oldest = self._clock() - self._seconds
            row = self._db.execute(query, (its_id, tenant, oldest)).fetchone()
            return None if row is None else json.loads(self._sealed.read(row[0]))

        return await self._run(work)

    async def add(self, record_id: str, items: Sequence[Item]) -> None:
        """Append `items` to those of a record, if it is still there; those that it has stay."""

        def work() -> None:
            with self._db:
                renewed = self._db.execute(
                    "update records set changed = ? where id = ?", (self._clock(), record_id)
                )
                if renewed.rowcount:
                    self._append(record_id, items)
                    self._bound()

        await self._run(work)

    async def remove(self, tenant: str, record_id: str) -> bool:
        """Delete a record and its items; whether the tenant had it."""

        def work() -> bool:
            with self._db:
                gone = self._db.execute(
                    "delete from records where id = ? and tenant = ?", (record_id, tenant)
                )
                return bool(gone.rowcount)

        return await self._run(work)

    async def remove_item(self, record_id: str, item_id: str) -> bool:
        """Delete one item of a record; whether it had it."""

        def work() -> bool:
            with self._db:
                gone = self._db.execute(
                    "delete from items where owner = ? and id = ?", (record_id, item_id)
                )
                self._weigh(record_id)
                return bool(gone.rowcount)

        return await self._run(work)

    def _append(self, record_id: str, items: Sequence[Item]) -> None:
        (last,) = self._db.execute(
            "select coalesce(max(place), 0) from items where owner = ?", (record_id,)
        ).fetchone()
        self._db.executemany(
            "insert or ignore into items values (?, ?, ?, ?)",
            [
                (record_id, n, item["id"], self._dump(item))
                for n, item in enumerate(items, last + 1)
            ],
        )
        self._weigh(record_id)

    def _weigh(self, record_id: str) -> None:
        self._db.execute(
            "update records set bytes = length(cast(content as blob)) + coalesce((select"
            " sum(length(cast(items.content as blob))) from items where owner = records.id), 0)"
            " where id = ?",
            (record_id,),
        )

    def _bound(self) -> None:
        self._db.execute("delete from records where changed < ?", (self._clock() - self._seconds,))
        count, total = self._db.execute("select count(*), sum(bytes) from records").fetchone()
        while count > self._most or (total or 0) > self._most_bytes:
            record_id, size = self._db.execute(
                "select id, bytes from records order by changed, bytes, id limit 1"
            ).fetchone()
            self._db.execute("delete from records where id = ?", (record_id,))
            count, total = count - 1, total - size

    def _dump(self, content: Item) -> str | bytes:
        return self._sealed.write(json.dumps(content, ensure_ascii=False))
