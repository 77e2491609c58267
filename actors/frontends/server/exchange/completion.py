"""Completion: a text that the model goes on with, without a conversation. Pure: any thread."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Protocol

from kvactors.actors.frontends.server.exchange.events import Reason, TokenLogprob, Usage
from kvactors.actors.frontends.server.exchange.inquiry import Client
from kvactors.core.schedule.sampling import Sampling

__all__ = ["Completed", "Completes", "Completion", "Continued"]


@dataclass(frozen=True, slots=True)
class Completion:
    """What a `client` asks. `prompt` is text, or token ids as they are; `echo`: it is told as well.
    `answer` False wants nothing more than that."""

    prompt: str | tuple[int, ...]
    sampling: Sampling
    echo: bool = False
    answer: bool = True
    client: Client = field(default_factory=Client)


@dataclass(frozen=True, slots=True)
class Continued:
    """Some more text, and the tokens since the last, if log-probabilities are wanted."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Completed:
    """Nothing follows. `reason` is as in `Ended`."""

    reason: Reason
    usage: Usage


class Completes(Protocol):
    """Goes on with texts."""

    def complete(self, asked: Completion) -> AsyncGenerator[Continued | Completed, None]:
        """What comes of it, piece by piece; leaving it early (`aclose`) ends it, and
        nothing stays of it in any case. Raises what `Agent.ask` does."""
        ...
