"""What callers may pass to Agent, checked before anything starts."""

import re
import sys
from typing import Any, NoReturn

from kvactors.core.errors import InvalidAgentId, InvalidConfig, InvalidInput
from kvactors.core.numbers import number, whole
from kvactors.core.schedule.sampling import Sampling

__all__ = [
    "LONGEST_ID",
    "LONGEST_REQUEST_ID",
    "check_count",
    "check_id",
    "check_observed",
    "check_request_id",
    "check_rewind",
    "check_system_prompt",
    "check_text",
    "check_turn",
    "stays_here",
]

LONGEST_ID = 255
LONGEST_REQUEST_ID = 200
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


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
        raise InvalidInput(f"sampling must be a Sampling, not {type(sampling).__name__}")
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
