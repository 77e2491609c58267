"""How a turn ends in a step, and what a failed step means: the end of a turn, or of the engine."""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from kvactors.core.engine.metrics import EngineMetrics
from kvactors.core.engine.running import RunningBatches
from kvactors.core.errors import TurnFailed
from kvactors.core.schedule.events import Aborted, Progress, Tokens
from kvactors.core.schedule.request import Request

__all__ = [
    "ALONE",
    "PROBATION",
    "Ended",
    "Failed",
    "Outcome",
    "beside",
    "blamed",
    "is_fatal",
    "make_suspects",
    "turn_failed",
]

# Tokens that a suspect of a failed step decodes alone before it rejoins the batch.
PROBATION = 3
# And one that cannot: more than any turn has.
ALONE = 1 << 62

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


@dataclass(frozen=True, slots=True)
class Ended:
    """A turn has all that it asked for; its row is still there."""

    request: Request
    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A turn failed; its row may still be there."""

    request: Request
    error: Exception


Outcome = Progress | Tokens | Ended | Failed


def beside(request: Request, running: RunningBatches) -> list[Request]:
    """The turns that prefill in one batch with this one, of those `running`, itself among them."""
    batch = running.prefills[request]
    return [request] if batch is None else list(batch.requests)


def blamed(
    requests: Sequence[Request], error: Exception, running: RunningBatches, metrics: EngineMetrics
) -> tuple[list[Failed], list[Request]]:
    """A step of these turns, the `requests`, failed with an `error`, which `metrics` count. Alone,
    a turn is guilty; together, each is to begin again and is tried alone. Raises what is fatal to
    the engine.

    The step may have donated the buffers of every row, so nothing of the batches of those that are
    `running` is used again: rows are rebuilt from their last pieces and their token ids.
    """
    active = running.active
    suspects = [request for request in requests if request in active]
    if is_fatal(error) or not suspects:
        raise error
    metrics.failed(suspects, error)
    running.discard(suspects)
    if len(suspects) == 1:
        return [Failed(suspects[0], turn_failed(suspects[0], error))], []
    for request in suspects:
        request.suspect, request.probation = True, PROBATION
    return [], suspects


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
