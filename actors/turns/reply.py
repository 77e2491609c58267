"""What an asker gets: Reply, its usage and timing."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.turns.ticket import Ticket
from kvactors.core.conversation.prefix_match import MatchKind
from kvactors.core.conversation.turn import Turn
from kvactors.core.schedule.events import Finished
from kvactors.core.schedule.logprobs import TokenLogprob
from kvactors.core.schedule.request import Request
from kvactors.core.trace import TurnEnded

__all__ = [
    "FinishReason",
    "Reply",
    "Rewound",
    "Timing",
    "Usage",
    "make_reply",
    "recorded_reply",
    "turn_ended",
]

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one turn. `prompt_tokens` is the whole context before the answer: what was
    reused from the cache plus what was prefilled. `retokenized_tokens` of them are of turns
    that another model's tokenizer made, tokenized again from their text."""

    prompt_tokens: int
    reused_tokens: int
    prefilled_tokens: int
    generated_tokens: int
    retokenized_tokens: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. `first_token` and `total` count from the ask; `queued` until admission,
    without the `restore` from disk; `prefill` from admission to the end of the prompt."""

    queued: float
    restore: float
    prefill: float
    first_token: float
    total: float


@dataclass(frozen=True, slots=True)
class Reply:
    """The end of a turn. `token_ids` are exactly what the answer appended to the transcript (behind
    what it went on with), `text` is what they say, and `answer` what of it is meant for who asked:
    without what the model thought and the headers of its messages.

    `cache` says where the agent's KV was when the turn began. `match` says how the whole
    conversation that was asked compared with the transcript; None for a turn that just appends.
    `scores` has the total log-probability of every choice, where choices were given. `logprobs`
    are those of `token_ids`, where `Sampling.top_logprobs` asked for them, `prompt_logprobs` those
    of the whole context before, where that was asked for too; its first token has none. `durable`
    resolves when the turn is in the ledger, `cached` when its KV is on disk, both synced: to
    True, or to False where nothing is kept. `recorded`: the agent had taken a turn with this
    `request_id`, and this is its answer from the ledger: nothing was computed, so usage and timing
    are zero but for the tokens of the answer, and there are no scores or log-probabilities.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    cache: Literal["hot", "warm", "cold"]
    match: MatchKind | None
    usage: Usage
    timing: Timing
    durable: ReplyFuture[bool] = field(repr=False, compare=False)
    cached: ReplyFuture[bool] = field(repr=False, compare=False)
    scores: Mapping[str, float] | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    recorded: bool = False
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Rewound:
    """The end of a rewind: how much is still remembered. `durable` as on a Reply."""

    turns: int
    tokens: int
    durable: ReplyFuture[bool] = field(repr=False, compare=False)


def turn_ended(ticket: Ticket) -> TurnEnded:
    """What is told of a ticket that was just settled: no text, and of an error its class."""
    error, usage, timing = ticket.reply.error, dict[str, int](), dict[str, float]()
    reason, cache = "done" if error is None else type(error).__name__, ""
    if error is None and isinstance(reply := ticket.reply.get(), Reply):
        reason, cache = reply.finish_reason, reply.cache
        usage, timing = asdict(reply.usage), asdict(reply.timing)
    now, failed = time.perf_counter(), error is not None
    return TurnEnded(now, ticket.agent_id, ticket.serial, reason, failed, cache, usage, timing)


def make_reply(
    finished: Finished,
    text: str,
    answer: str,
    match: MatchKind | None,
    ticket: Ticket,
    retokenized: int,
) -> Reply:
    """The reply of a turn that has `finished`: its `text`, the `answer` in that, how its
    conversation compared (`match`), the futures of its `ticket`, and how many tokens were
    `retokenized`."""
    request = finished.request
    begin = request.submitted_at

    def since(moment: float) -> float:
        return max(0.0, (moment or finished.finished_at) - begin)

    admitted, prefilled = since(request.admitted_at), since(request.prefilled_at)
    return Reply(
        text=text,
        token_ids=tuple(request.generated),
        finish_reason=finished.reason,  # type: ignore[arg-type]
        cache=request.cache_state,  # type: ignore[arg-type]
        match=match,
        usage=Usage(
            prompt_tokens=request.prompt,
            reused_tokens=request.kept,
            prefilled_tokens=max(0, min(request.cached, request.prompt) - request.kept),
            generated_tokens=len(request.generated),
            retokenized_tokens=retokenized,
        ),
        timing=Timing(
            queued=max(0.0, admitted - request.restore_seconds),
            restore=request.restore_seconds,
            prefill=max(0.0, prefilled - admitted),
            first_token=since(request.first_token_at),
            total=since(finished.finished_at),
        ),
        durable=ticket.durable,
        cached=ticket.cached,
        scores=dict(zip(request.sampling.choices, request.scores, strict=False)) or None,
        logprobs=tuple(request.logprobs),
        prompt_logprobs=_of_prompt(request),
        answer=answer,
    )


def recorded_reply(answer: Turn, words: str, ticket: Ticket) -> Reply:
    """The reply of a turn that was taken before: its `answer`, and the `words` in that, for who
    waits by this `ticket`."""
    return Reply(
        text=answer.text,
        token_ids=answer.token_ids,
        finish_reason=answer.finish,  # type: ignore[arg-type]
        cache="hot",
        match=None,
        usage=Usage(0, 0, 0, len(answer.token_ids), 0),
        timing=Timing(0.0, 0.0, 0.0, 0.0, max(0.0, time.perf_counter() - ticket.submitted_at)),
        durable=ticket.durable,
        cached=ticket.cached,
        recorded=True,
        answer=words,
    )


def _of_prompt(request: Request) -> tuple[TokenLogprob, ...]:
    if not request.sampling.prompt_logprobs:
        return ()
    return (TokenLogprob(request.tokens[0], None), *request.prompt_logprobs)
