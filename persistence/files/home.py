"""Whose home `~` means. Pure: any thread."""

from pathlib import Path

from kvactors.core.errors import InvalidConfig

__all__ = ["expanded"]


def expanded(path: str | Path) -> Path:
    """A `path` with the home that its `~` means. Raises InvalidConfig where nobody knows that."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InvalidConfig(f"{str(path)!r}: {error}") from error
