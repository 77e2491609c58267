"""A whole turn as a plain record: what front ends ask, beyond `Agent.ask`. Made where it is asked,
checked where the agent is. Pure: any thread.

    {"continues": [kept turns, [[role, text], ...], system prompt or None]}
                            and "begun": what the answer goes on with
    {"ids": [token ids]}    as they are, of the tokenizer of the nodes' model
"""

from typing import Any

from kvactors.actors.cluster.protocol.errors import WrongRecord
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.turns.checks import check_turn
from kvactors.actors.turns.options import TurnOptions
from kvactors.actors.turns.prompt import (
    Continuation,
    NewTokenIds,
    PromptInput,
    check_token_ids,
    check_told,
)
from kvactors.core.errors import InvalidInput
from kvactors.core.model.info import ModelInfo
from kvactors.core.numbers import whole
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.text import check_text

__all__ = ["plain_turn", "read_turn"]

FLAGS = ("answer", "remembered")


def plain_turn(turn: TurnOptions) -> dict[str, Any]:
    """All of a turn but its sampling and its request_id. Raises InvalidInput for another prompt
    than these."""
    flags = {name: getattr(turn, name) for name in FLAGS}
    return {
        "given": _plain(turn.prompt),
        "timeout": turn.timeout,
        "priority": turn.priority,
        **flags,
        # Nodes of before know no others than these.
        **({"tenant": turn.tenant} if turn.tenant else {}),
        **({"lends": True} if turn.lends else {}),
        **({"template_kwargs": turn.template_kwargs} if turn.template_kwargs else {}),
    }


def read_turn(model: ModelInfo, record: Record) -> TurnOptions:
    """The turn of a `record`, with the "sampling" and "request_id" that were read of it, for this
    `model`. Raises WrongRecord, InvalidInput, TokenOutOfRange."""
    flags = {name: record.get(name, True) for name in FLAGS}
    if not all(isinstance(flag, bool) for flag in flags.values()):
        raise WrongRecord(reason=f"{' and '.join(FLAGS)} are true or false, not {flags!r}")
    sampling = record.get("sampling") or Sampling()
    seconds, placed = check_turn(sampling, record.get("timeout"), record.get("priority", 0))
    given, tenant = _read(model, record.get("given")), record.get("tenant", "")
    told = check_told(record.get("template_kwargs"), raw=isinstance(given, NewTokenIds))
    if not isinstance(tenant, str):
        raise WrongRecord(reason=f"a tenant is text, not {tenant!r}")
    return TurnOptions(
        given,
        sampling,
        seconds,
        placed,
        request_id=record.get("request_id"),
        template_kwargs=told,
        tenant=tenant,
        lends=record.get("lends") is True,
        **flags,
    )


def _plain(given: PromptInput) -> dict[str, Any]:
    if isinstance(given, Continuation):
        said = [given.keep, [list(said) for said in given.messages], given.system]
        return {"continues": said, **({"begun": given.begun} if given.begun else {})}
    if isinstance(given, NewTokenIds):
        return {"ids": list(given.token_ids)}
    raise InvalidInput(f"a {type(given).__name__} is asked with `ask`")


def _read(model: ModelInfo, given: Any) -> PromptInput:
    match given:
        case {"ids": list(ids)}:
            return NewTokenIds(check_token_ids(ids, model.spec.vocab_size), model)
        case {"continues": [keep, list(said), str() | None as system]}:
            if (kept := whole(keep)) is not None and kept >= 0:
                _, begun = _message(["assistant", given.get("begun", "")])
                return Continuation(kept, tuple(map(_message, said)), system, begun)
    raise WrongRecord(reason=f"no prompt that this node knows: {given!r:.200}")


def _message(said: Any) -> tuple[str, str]:
    match said:
        case [str(role), str(text)]:
            return check_text("a role", role), check_text("a message", text)
    raise WrongRecord(reason=f"a message is a role and a text, not {said!r:.200}")
