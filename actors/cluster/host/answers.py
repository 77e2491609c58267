"""Replies as plain records: made where the agent is, read where it was asked. Pure: any thread."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kvactors.actors.cluster.protocol.errors import WrongRecord
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.turns.reply import Reply, Rewound, Timing, Usage
from kvactors.core.schedule.logprobs import TokenLogprob

__all__ = [
    "plain_logprobs",
    "read_logprobs",
    "read_reply",
    "read_rewound",
    "reply_record",
    "rewound_record",
]


def reply_record(reply: Reply) -> dict[str, Any]:
    """All of a reply but its futures."""
    return {
        "text": reply.text,
        "tokens": list(reply.token_ids),
        "finish": reply.finish_reason,
        "cache": reply.cache,
        "match": reply.match,
        "usage": asdict(reply.usage),
        "timing": asdict(reply.timing),
        "scores": None if reply.scores is None else dict(reply.scores),
        "logprobs": plain_logprobs(reply.logprobs),
        "prompt_logprobs": plain_logprobs(reply.prompt_logprobs),
        "recorded": reply.recorded,
        "answer": reply.answer,
    }


def read_reply(record: Record, durable: ReplyFuture[bool], cached: ReplyFuture[bool]) -> Reply:
    """The reply of a `record`, with futures of whoever knows when it is `durable` and `cached`.
    Raises WrongRecord."""
    try:
        return Reply(
            text=record["text"],
            token_ids=tuple(record["tokens"]),
            finish_reason=record["finish"],
            cache=record["cache"],
            match=record["match"],
            usage=Usage(**record["usage"]),
            timing=Timing(**record["timing"]),
            durable=durable,
            cached=cached,
            scores=record["scores"],
            logprobs=read_logprobs(record["logprobs"]),
            prompt_logprobs=read_logprobs(record["prompt_logprobs"]),
            recorded=record["recorded"],
            answer=record["answer"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise WrongRecord(reason=f"no answer that is known here: {error!r}") from error


def rewound_record(rewound: Rewound) -> dict[str, Any]:
    """All of it but its future."""
    return {"turns": rewound.turns, "tokens": rewound.tokens}


def read_rewound(record: Record, durable: ReplyFuture[bool]) -> Rewound:
    """The end of a rewind, of a `record`, with the future of whoever knows when it is `durable`.
    Raises WrongRecord."""
    try:
        return Rewound(record["turns"], record["tokens"], durable)
    except KeyError as error:
        raise WrongRecord(reason=f"no rewind that is known here: {error!r}") from error


def plain_logprobs(logprobs: Sequence[TokenLogprob]) -> list[list[Any]]:
    """Those of tokens, as they cross."""
    return [[item.token, item.logprob, [list(pair) for pair in item.top]] for item in logprobs]


def read_logprobs(plain: Sequence[Sequence[Any]]) -> tuple[TokenLogprob, ...]:
    """The same again."""
    return tuple(
        TokenLogprob(token, logprob, tuple((other, value) for other, value in top))
        for token, logprob, top in plain
    )
