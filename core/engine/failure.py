"""What a failed step means: the end of a turn, or of the engine."""

import traceback
from collections.abc import Sequence

from kvactors.core.errors import TurnFailed
from kvactors.core.schedule.events import Aborted
from kvactors.core.schedule.request import Request

__all__ = ["PROBATION", "is_fatal", "make_suspects", "turn_failed"]

# Tokens that a suspect of a failed step decodes alone before it rejoins the batch.
PROBATION = 3

# What Metal's and CUDA's runtimes say once a process's queue or context is lost.
_SIGNS = (
    "command buffer execution failed",
    "device lost",
    "illegal memory access",
    "unspecified launch failure",
    "device-side assert",
    "uncorrectable ecc",
)


def is_fatal(error: BaseException) -> bool:
    """Whether a step's error is the device's, not of the turns that ran in it."""
    text = str(error).lower()
    return not isinstance(error, Exception) or any(sign in text for sign in _SIGNS)


def make_suspects(running: Sequence[Request]) -> list[Aborted]:
    """The device failed in a step of these turns: each runs alone from now on. One that ran
    alone already fails."""
    ended = []
    for request in running:
        if len(running) == 1 and request.suspect:
            error = TurnFailed("the device failed twice in this turn, the second time alone")
            ended.append(Aborted(request.agent_id, request.serial, error))
        request.suspect, request.probation = True, PROBATION
    return ended


def turn_failed(request: Request, error: Exception) -> TurnFailed:
    """The error of a turn in which something else failed, with that as its cause."""
    failure = TurnFailed(
        f"turn {request.turn} of {request.agent_id!r} failed: {type(error).__name__}: {error}"
    )
    failure.__cause__ = error
    # The traceback stays readable from the model on; the arrays that its frames hold, and
    # this engine, are let go.
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next or error.__traceback__
    traceback.clear_frames(error.__traceback__)
    return failure
