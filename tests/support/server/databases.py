"""Databases of tests, which nobody closes: they are closed when they are let go."""

import sqlite3
from pathlib import Path

__all__ = ["database"]


class _Closing(sqlite3.Connection):
    def __del__(self) -> None:
        self.close()


def database(path: Path | str = ":memory:") -> sqlite3.Connection:
    """For any thread, with the tables of an index that others look at."""
    made = sqlite3.connect(path, check_same_thread=False, factory=_Closing)
    made.executescript(
        "create table if not exists agents(agent);"
        "create table if not exists answers(answer, agent);"
    )
    return made
