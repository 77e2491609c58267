"""Databases of tests, which nobody closes: they are closed when they are let go."""

import sqlite3
from pathlib import Path

__all__ = ["database"]


class _Closing(sqlite3.Connection):
    def __del__(self) -> None:
        self.close()


def database(path: Path | str = ":memory:") -> sqlite3.Connection:
    """For any thread."""
    return sqlite3.connect(path, check_same_thread=False, factory=_Closing)
