"""What callers may pass to Agent, checked before anything starts."""

import difflib
import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, ParamSpec, TypeVar

from kvactors.core.errors import InvalidAgentId, InvalidConfig, InvalidInput
from kvactors.core.numbers import number, whole
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.text import check_text

__all__ = [
    "LONGEST_ID",
    "LONGEST_REQUEST_ID",
    "check_callable",
    "check_count",
    "check_flag",
    "check_id",
    "check_known",
    "check_observed",
    "check_path",
    "check_request_id",
    "check_rewind",
    "check_system_prompt",
    "check_topic",
    "check_turn",
    "check_wait",
    "naming_nearest",
    "stays_here",
]

LONGEST_ID = 255
LONGEST_REQUEST_ID = 200
P = ParamSpec("P")
R = TypeVar("R")


def check_id(agent_id: object) -> None:
    """Raise InvalidAgentId unless it is a string of 1 to 255 characters."""
    if not isinstance(agent_id, str):
        raise InvalidAgentId(f"an agent id is a string, not {type(agent_id).__name__}")
    if not 1 <= len(agent_id) <= LONGEST_ID:
        raise InvalidAgentId(
            f"an agent id has 1 to {LONGEST_ID} characters; this one has {len(agent_id)}"
        )


def check_system_prompt(system_prompt: object) -> None:
    """Raise InvalidConfig unless it is text or None."""
    if system_prompt is None:
        return
    if not isinstance(system_prompt, str):
        raise InvalidConfig(f"system_prompt must be text: {type(system_prompt).__name__}")
    check_text("system_prompt", system_prompt, InvalidConfig)


def check_flag(name: str, value: object) -> bool:
    """The `value`, called `name`. Raises InvalidInput unless it is True or False: a text such as
    "no" is true, too."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} must be True or False, not {value!r:.80}")
    return value


def check_callable(name: str, value: object) -> None:
    """Raise InvalidInput for a `value`, called `name`, that cannot be called."""
    if not callable(value):
        raise InvalidInput(f"{name} must be callable, not {value!r:.80}")


def check_path(name: str, path: object) -> None:
    """Raise InvalidInput for a `path`, called `name`, that no file has."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidInput(f"{name} must be the path of a file, not {path!r:.80}")


def check_topic(topic: object) -> None:
    """Raise InvalidInput for what names no topic."""
    if not isinstance(topic, str):
        raise InvalidInput(f"a topic is a string, not {type(topic).__name__}")


def check_wait(timeout: Any) -> float | None:
    """Seconds to wait, as many as threads can, None without an end. Raises InvalidInput unless it
    is a number of at least 0."""
    seconds = number(timeout)
    if timeout is not None and (seconds is None or not seconds >= 0):
        raise InvalidInput(f"timeout must be at least 0 seconds, not {timeout!r:.80}")
    return None if seconds is None else min(seconds, threading.TIMEOUT_MAX)


def check_known(method: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise InvalidInput for the first of these `names` that is not a `known` parameter of a
    `method`; it names the one that was probably meant, or that takes it."""
    offered = list(known)
    for name in sorted(set(names) - set(offered)):
        nearest = difflib.get_close_matches(name, offered, 1)
        meant = f"did you mean {nearest[0]!r}?" if nearest else f"it has {', '.join(offered)}"
        if "sampling" in offered and name in Sampling.__slots__:
            meant = f"say sampling=Sampling({name}=...)"
        raise InvalidInput(f"{method} has no parameter {name!r}: {meant}")


def naming_nearest(method: Callable[P, R]) -> Callable[P, R]:
    """The method, which names the parameter that was probably meant by one that it does not have.
    Raises InvalidInput."""
    known = list(inspect.signature(method).parameters)[1:]

    @functools.wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> R:
        check_known(method.__name__, options, known)
        return method(*args, **options)

    return call


def stays_here(handle: object, instead: str) -> NoReturn:
    """Refuse to copy what belongs to the threads of its process. Raises InvalidInput."""
    kind = type(handle).__name__
    raise InvalidInput(f"{kind} cannot be copied or pickled, it belongs to its process: {instead}")


def check_turn(sampling: object, timeout: Any, priority: Any = 0) -> tuple[float | None, int]:
    """The `timeout` in seconds and the `priority` of a turn. Raises InvalidInput for one that no
    turn has, or such a `sampling`."""
    placed, seconds = whole(priority), number(timeout)
    if placed is None:
        raise InvalidInput(f"priority must be an int, not {priority!r}")
    if sampling is not None and not isinstance(sampling, Sampling):
        kind = type(sampling).__name__
        raise InvalidInput(f"sampling must be a Sampling, such as Sampling(seed=5), not {kind}")
    if timeout is not None and (seconds is None or not 0 < seconds <= sys.float_info.max):
        raise InvalidInput(f"timeout must be above 0 seconds and finite, not {timeout!r}")
    return seconds, placed


def check_observed(text: object, role: object) -> str:
    """The `role` of a `text` to be observed. Raises InvalidInput for what is no text, or no role of
    any template."""
    if not isinstance(text, str):
        raise InvalidInput(f"observe takes text, not {type(text).__name__}")
    if not isinstance(role, str) or not role:
        raise InvalidInput(f"role must be a non-empty string, not {role!r}")
    return check_text("role", role)


def check_request_id(request_id: object) -> str | None:
    """The id of a request, if it has one. Raises InvalidInput unless it is a string of 1 to 200
    characters."""
    if request_id is None:
        return None
    if not isinstance(request_id, str):
        raise InvalidInput(f"a request_id is a string, not {type(request_id).__name__}")
    if not 1 <= len(request_id) <= LONGEST_REQUEST_ID:
        raise InvalidInput(
            f"a request_id has 1 to {LONGEST_REQUEST_ID} characters; this one has {len(request_id)}"
        )
    return check_text("request_id", request_id)


def check_count(name: str, value: object, least: int) -> int | None:
    """The `value`, called `name`. Raises InvalidInput unless it is None or an int of at least
    `least`."""
    found = whole(value)
    if value is not None and (found is None or found < least):
        raise InvalidInput(f"{name} must be an int of at least {least}, not {value!r}")
    return found


def check_rewind(turns: object, to_token: object) -> tuple[int | None, int | None]:
    """The `turns` to take back, or the tokens to keep, `to_token`. Raises InvalidInput for both, or
    what is no such number."""
    if turns is not None and to_token is not None:
        raise InvalidInput("rewind takes turns or to_token, not both")
    return check_count("turns", turns, 1), check_count("to_token", to_token, 0)
