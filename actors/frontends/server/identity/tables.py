"""The file of the index: its tables, and those of before. The thread of the index."""

import logging
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from kvactors.core.errors import InvalidConfig

__all__ = ["ENDS", "INDEX", "locked", "opened"]

logger = logging.getLogger(__name__)

INDEX = "clients.db"
"""The file in a store that says who knows what."""
VERSION = 3

_TABLES = """
create table if not exists agents(
    agent text primary key, tenant text not null, thread text not null, tools text not null,
    notes text not null, named integer not null, used real not null,
    prompt not null default '', ends blob not null default x'');
create index if not exists threads on agents(tenant, thread);
create table if not exists places(
    chain blob not null, agent text not null, turns integer not null, mark text not null,
    notes text not null default '', tools text not null default '', primary key(chain, agent))
    without rowid;
create index if not exists places_of on places(agent, turns);
create table if not exists said(chain blob primary key, parent blob not null, text text not null)
    without rowid;
create index if not exists said_behind on said(parent);
create table if not exists answers(
    answer text primary key, tenant text not null, chain blob not null, agent text not null,
    made real not null) without rowid;
create index if not exists answers_of on answers(agent);
"""

# The conversation that an agent ends with.
ENDS = (
    "coalesce((select chain from places where places.agent = agents.agent"
    " order by turns desc limit 1), x'')"
)


def locked(path: Path) -> FileLock:
    """The file `path` for one server alone, until released. Raises InvalidConfig."""
    if not path.parent.is_dir():
        raise InvalidConfig(f"{path.parent} is no folder: there is no room for {path.name}")
    # Opened on one thread and closed on another: the lock belongs to the process.
    lock = FileLock(f"{path}.lock", mode=0o600, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise InvalidConfig(
            f"another server has {path} open: end it, or give this one an index= of its own, by "
            "--store where it is `kvactors serve`"
        ) from None
    return lock


def opened(path: Path | None) -> sqlite3.Connection:
    """The tables in the file `path`, or in memory. A file that is none of SQLite's, or damaged
    anywhere, is set aside: kept responses are lost with it, and so is who knows what, so that
    conversations are prefilled again by agents that are new. Raises InvalidConfig for one that
    cannot be used."""
    try:
        return _with_tables(path)
    except sqlite3.OperationalError as error:
        raise InvalidConfig(
            f"{path} cannot be used: {error}. Mend that, or move the file away: who is called what,"
            " which conversation is whose and the kept responses go with it, no agent does"
        ) from error
    except sqlite3.DatabaseError as error:
        if path is None:
            raise
        aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
        logger.error("%s is set aside as %s, and begun anew: %s", path, aside.name, error)
        path.replace(aside)
        for name in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                path.with_name(path.name + name).replace(aside.with_name(aside.name + name))
        return _with_tables(path)


def _with_tables(path: Path | None) -> sqlite3.Connection:
    database = sqlite3.connect(path or ":memory:", check_same_thread=False)
    try:
        if path is not None:
            path.chmod(0o600)
        (version,) = database.execute("pragma user_version").fetchone()
        if version > VERSION:
            raise InvalidConfig(f"{path} is of a newer version of kvactors: upgrade this one")
        # What is forgotten is overwritten.
        how = "pragma journal_mode=wal; pragma synchronous=normal; pragma secure_delete=on;"
        database.executescript(how + _TABLES)
        (found,) = database.execute("pragma quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        _renew(database, version)
    except BaseException:
        database.close()
        raise
    return database


def _renew(database: sqlite3.Connection, version: int) -> None:
    """Tables of a `version` of before as they are by now."""
    if "prompt" not in _columns(database, "agents"):
        database.execute("alter table agents add column prompt not null default ''")
    if "ends" not in _columns(database, "agents"):
        database.executescript(
            "alter table agents add column ends blob not null default x'';"
            f"update agents set ends = {ENDS};"
        )
    database.executescript(
        "drop index if exists ends_of;"
        "create index if not exists ends_with on agents(ends, thread, tools)"
    )
    if "notes" not in _columns(database, "places"):
        # Before, an agent's last notes stood for all its places.
        database.executescript(
            "alter table places add column notes text not null default '';"
            "update places set notes = coalesce((select notes from agents"
            " where agents.agent = places.agent), '{}');"
        )
    if "tools" not in _columns(database, "places"):
        # Before, those that an agent was told later stood with those that it began with.
        database.execute("alter table places add column tools text not null default ''")
    # Before, texts and answers stayed that an agent had gone back behind, and nothing else finds
    # them.
    for table in ("said", "answers")[version:]:
        database.execute(
            f"delete from {table} where not exists"
            f" (select 1 from places where places.chain = {table}.chain)"
        )
    if version < VERSION:
        database.execute(f"pragma user_version = {VERSION}")
        database.commit()


def _columns(database: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in database.execute(f"pragma table_info({table})")]
