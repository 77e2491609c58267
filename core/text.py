"""The one rule of text in arguments: it has a UTF-8 form. Pure: any thread."""

import re

from kvactors.core.errors import InvalidInput

__all__ = ["check_text", "check_texts"]

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def check_text(name: str, text: str, error: type[InvalidInput] = InvalidInput) -> str:
    """The `text`, called `name`. Raises `error` for a lone surrogate: it is half a character, and
    has no UTF-8 to be tokenized or stored as."""
    half = _LONE_SURROGATE.search(text)
    if half is not None:
        raise error(
            f"{name} has a lone surrogate, {half[0]!a}, at character {half.start()}: decode what "
            "it was read from as UTF-8, or replace it"
        )
    return text


def check_texts(name: str, value: object, error: type[InvalidInput] = InvalidInput) -> None:
    """Raise `error` for a lone surrogate in any text of a `value`, called `name`, however deep in
    lists and mappings it stands."""
    if isinstance(value, str):
        check_text(name, value, error)
    elif isinstance(value, dict):
        for key, item in value.items():
            check_texts(name, key, error)
            check_texts(f"{name}[{key!r}]", item, error)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            check_texts(f"{name}[{place}]", item, error)
