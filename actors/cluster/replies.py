"""What comes back: a reply made of its record, and the errors of an agent's system as they are
known."""

from collections.abc import Mapping
from typing import Any

from kvactors.actors.cluster.protocol.errors import HostFailed
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.turns.reply import Reply, Timing, Usage
from kvactors.core.errors import KvactorsError
from kvactors.core.schedule.logprobs import TokenLogprob

__all__ = ["as_known", "reply_of"]


def reply_of(answer: Mapping[str, Any], durable: ReplyFuture[bool]) -> Reply:
    """The reply of an `answer`; `durable` is settled when it is on as many nodes as it should be.
    When its KV is on disk nobody says: `cached` is settled with it, to False."""
    record = {name: value for name, value in answer.items() if name in _PLAIN}
    cached: ReplyFuture[bool] = ReplyFuture()
    cached.resolve(False)
    return Reply(
        **record,
        token_ids=tuple(answer["token_ids"]),
        usage=Usage(**answer["usage"]),
        timing=Timing(**answer["timing"]),
        logprobs=_logprobs(answer.get("logprobs", ())),
        prompt_logprobs=_logprobs(answer.get("prompt_logprobs", ())),
        durable=durable,
        cached=cached,
    )


_PLAIN = ("text", "finish_reason", "cache", "match", "scores")


def _logprobs(entries: Any) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(token, logprob, tuple((other, of) for other, of in top))
        for token, logprob, top in entries
    )


def as_known(error: BaseException) -> BaseException:
    """What an agent's system raised is raised here as what it was there."""
    if not isinstance(error, HostFailed):
        return error
    kind = _kinds(KvactorsError).get(error.fields["kind"])
    if kind is None:
        return error
    known = kind.__new__(kind)
    known.args = (error.fields["message"],)
    known.__cause__ = error
    return known


def _kinds(root: type[KvactorsError]) -> dict[str, type[KvactorsError]]:
    found = {root.__name__: root}
    for kind in root.__subclasses__():
        found |= _kinds(kind)
    return found
