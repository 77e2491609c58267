"""What is asked of an agent of a cluster, as plain records: made where it is asked, checked where
the agent is. Pure: any thread."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Unpack

from kvactors.actors.cluster.host.whole_turns import plain_turn
from kvactors.actors.cluster.protocol.errors import WrongRecord
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.wire import pack
from kvactors.actors.runtime.mailbox import LanePolicy
from kvactors.actors.runtime.supervision import Supervision
from kvactors.actors.turns.checks import check_request_id
from kvactors.actors.turns.options import AskOptions, TurnOptions
from kvactors.core.conversation.context_policy import ContextPolicy, DropOldest, Summarize
from kvactors.core.errors import InvalidInput
from kvactors.core.numbers import whole
from kvactors.core.schedule.grammar import Grammar
from kvactors.core.schedule.sampling import Sampling

__all__ = [
    "ask_request",
    "observe_request",
    "read_request",
    "read_spawn_options",
    "rewind_request",
    "spawn_options",
    "turn_request",
]

KINDS = {
    "ask": {"prompt", *AskOptions.__annotations__} - {"request_id"},
    "observe": {"text", "role"},
    "rewind": {"turns", "to_token"},
    "turn": {
        "given",
        "sampling",
        "timeout",
        "priority",
        "answer",
        "remembered",
        "lends",
        "template_kwargs",
        "tenant",
    },
    "withdraw": set(),
}
OPTIONS = {"system_prompt", "context_policy", "prompt_lane", "behaviour", "supervision"}
POLICIES = {"DropOldest": DropOldest, "Summarize": Summarize}


def ask_request(
    prompt: str | Sequence[int] | None = None, **options: Unpack[AskOptions]
) -> dict[str, Any]:
    """A turn, as `Agent.ask` takes it, with a `request_id`. Raises InvalidInput without one, and
    for a prompt that has no plain form, or a number of more than 64 bits."""
    record: dict[str, Any] = {"kind": "ask", **options}
    record["id"] = _required(record.pop("request_id", None))
    if prompt is not None:
        record["prompt"] = _plain_prompt(prompt)
    if record.get("sampling") is not None:
        record["sampling"] = _changed(record["sampling"])
    return _sendable(record)


def observe_request(request_id: str, text: str, role: str = "user") -> dict[str, Any]:
    """What `Agent.observe` takes: a `text` of this `role`, under its `request_id`."""
    return {"id": _required(request_id), "kind": "observe", "text": text, "role": role}


def turn_request(request_id: str, turn: TurnOptions) -> dict[str, Any]:
    """A `turn` of a front end, under its `request_id`. Raises InvalidInput for a prompt that has
    no plain form, or a number of more than 64 bits."""
    plain = {"kind": "turn", **plain_turn(turn), "sampling": _changed(turn.sampling)}
    return _sendable({"id": _required(request_id), **plain})


def rewind_request(
    request_id: str, turns: int | None = None, to_token: int | None = None
) -> dict[str, Any]:
    """What `Agent.rewind` takes: `turns` or `to_token`, under its `request_id`. Raises InvalidInput
    for a number of more than 64 bits."""
    found = {"id": _required(request_id), "kind": "rewind", "turns": turns, "to_token": to_token}
    return _sendable({name: value for name, value in found.items() if value is not None})


def read_request(record: Record) -> tuple[str, dict[str, Any]]:
    """The kind of a request ("ask", "observe", "rewind", "turn", "withdraw"), and the parameters of
    the Agent's method. Raises WrongRecord, and InvalidInput for values of no such types."""
    given = dict(record)
    kind, request_id = given.pop("kind", "ask"), given.pop("id", None)
    known = KINDS.get(kind) if isinstance(kind, str) else None
    if known is None or not isinstance(request_id, str) or not given.keys() <= known:
        raise WrongRecord(reason=f"no request that this node knows: {sorted(map(str, record))}")
    if given.get("sampling") is not None:
        given["sampling"] = _sampling(given["sampling"])
    return kind, {**given, "request_id": request_id}


def spawn_options(
    system_prompt: str | None = None,
    *,
    context_policy: ContextPolicy | None = None,
    prompt_lane: LanePolicy | None = None,
    behaviour: str | None = None,
    supervision: Supervision | None = None,
) -> dict[str, Any]:
    """What `AgentSystem.spawn` takes, plain: `system_prompt`, `context_policy`, `prompt_lane`, the
    name of a `behaviour`, its `supervision`."""
    record: dict[str, Any] = {}
    if system_prompt is not None:
        record["system_prompt"] = system_prompt
    if context_policy is not None:
        record["context_policy"] = _plain_policy(context_policy)
    if prompt_lane is not None:
        record["prompt_lane"] = asdict(prompt_lane)
    if behaviour is not None:
        record["behaviour"] = behaviour
    if supervision is not None:
        record["supervision"] = asdict(supervision)
    return record


def read_spawn_options(record: Record) -> dict[str, Any]:
    """The parameters of `AgentSystem.spawn`. Raises WrongRecord, and InvalidConfig for values that
    these types do not have."""
    given = dict(record)
    if not given.keys() <= OPTIONS:
        raise WrongRecord(reason=f"no options that this node knows: {sorted(map(str, record))}")
    if "prompt_lane" in given:
        given["prompt_lane"] = _made(LanePolicy, given["prompt_lane"])
    if not isinstance(given.get("behaviour", ""), str):
        raise WrongRecord(reason=f"a behaviour has a name, not {given['behaviour']!r:.200}")
    if "supervision" in given:
        given["supervision"] = _made(Supervision, given["supervision"])
    if "context_policy" in given:
        given["context_policy"] = _policy(given["context_policy"])
    return given


def _required(request_id: str | None) -> str:
    found = check_request_id(request_id)
    if found is None:
        raise InvalidInput("a turn of a cluster has a request_id: whoever asks again asks with it")
    return found


def _sendable(record: dict[str, Any]) -> dict[str, Any]:
    try:
        pack(record)
    except OverflowError as error:
        raise InvalidInput("a number that a node is sent has 64 bits at most") from error
    return record


def _plain_prompt(prompt: str | Sequence[int]) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    tokens = [whole(token) for token in prompt]
    if None in tokens:
        raise InvalidInput(f"a prompt is text or a list of token ids, not {prompt!r:.80}")
    return tokens  # type: ignore[return-value]


def _changed(sampling: Sampling) -> dict[str, Any]:
    """What is not as by default: a node of another release has defaults of its own for the rest."""
    plain, default = asdict(sampling), asdict(Sampling())
    return {name: value for name, value in plain.items() if value != default[name]}


def _sampling(record: Any) -> Sampling:
    if isinstance(record, Mapping) and record.get("grammar") is not None:
        record = {**record, "grammar": _made(Grammar, record["grammar"])}
    made: Sampling = _made(Sampling, record)
    return made


def _plain_policy(policy: ContextPolicy) -> str | dict[str, Any]:
    return policy if isinstance(policy, str) else {"kind": type(policy).__name__, **asdict(policy)}


def _policy(record: Any) -> ContextPolicy:
    if record == "refuse":
        return "refuse"
    values = dict(record) if isinstance(record, Mapping) else {}
    kind = POLICIES.get(values.pop("kind", ""))
    if kind is None:
        raise WrongRecord(reason=f"no context_policy that this node knows: {record!r:.200}")
    found: DropOldest = _made(kind, values)
    return found


def _made(kind: Any, record: Any) -> Any:
    """One of these dataclasses, of its plain fields. Raises WrongRecord."""
    names = {field.name for field in fields(kind)}
    if not isinstance(record, Mapping) or not record.keys() <= names:
        raise WrongRecord(reason=f"no {kind.__name__} that this node knows: {record!r:.200}")
    return kind(**record)
