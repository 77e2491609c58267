"""What callers may pass to Agent, checked before anything starts."""

import sys

from kvactors.core.errors import InvalidAgentId, InvalidConfig, InvalidInput
from kvactors.core.schedule.sampling import Sampling

__all__ = ["LONGEST_ID", "check_count", "check_id", "check_system_prompt", "check_turn"]

LONGEST_ID = 255


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
    if system_prompt is not None and not isinstance(system_prompt, str):
        raise InvalidConfig(f"system_prompt must be text: {type(system_prompt).__name__}")


def check_turn(sampling: object, timeout: object, priority: object = 0) -> None:
    """Raise InvalidInput for a `sampling`, `timeout` in seconds or `priority` that no turn has."""
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise InvalidInput(f"priority must be an int, not {priority!r}")
    if sampling is not None and not isinstance(sampling, Sampling):
        raise InvalidInput(f"sampling must be a Sampling, not {type(sampling).__name__}")
    if timeout is not None and not _is_seconds(timeout):
        raise InvalidInput(f"timeout must be above 0 seconds and finite, not {timeout!r}")


def check_count(name: str, value: object, least: int) -> None:
    """Raise InvalidInput unless `value`, called `name`, is None or an int of at least `least`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (whole and value >= least):  # type: ignore[operator]
        raise InvalidInput(f"{name} must be an int of at least {least}, not {value!r}")


def _is_seconds(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value <= sys.float_info.max  # type: ignore[operator]
