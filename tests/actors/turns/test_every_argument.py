"""Every argument of every public call is checked before any work: what is no such thing is refused
with an error of ours, and nothing was begun."""

import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from behaviours import Does
from makers import OpenSystem

from kvactors.actors import (
    Agent,
    AgentBehaviour,
    AgentSystem,
    DraftModel,
    InvalidConfig,
    InvalidInput,
    KvactorsError,
    Sampling,
    Summarize,
    replay,
)
from kvactors.core.testing.models import tiny_llama

WAIT = 60
HALF = "caf\udcc3"
# What is given for all other parameters of a call, by its name.
GOOD: dict[str, Any] = {
    "agent_id": "nobody",
    "model": tiny_llama(),
    "message": "m",
    "behaviours": {},
    "seconds": 1.0,
    "function": len,
    "text": "t",
    "topic": "t",
    "to": "nobody",
    "url": "memory:///",
}
# Values of any kind are right, and what a callable or a mapping takes is its own.
ANYTHING = {"self", "message", "args", "seed", "options", "changes", "priority"}


class Wrong:
    """Nothing that a call takes."""


CALLS: dict[str, Callable[..., Any]] = {
    f"{kind.__name__}.{name}": getattr(kind, name)
    for kind, names in {
        AgentSystem: "backup deactivate export_agent find forget import_agent prefetch publish "
        "spawn stop swap_model trace wait_idle watch",
        Agent: "ask observe request rewind stream stream_async tell",
        AgentBehaviour: "ask broadcast every later observe publish rewind run_blocking send "
        "stop subscribe think unsubscribe watch",
    }.items()
    for name in names.split()
}
CASES = [
    (name, parameter)
    for name, call in CALLS.items()
    for parameter in inspect.signature(call).parameters
    if parameter not in ANYTHING
]


def call(name: str, *args: Any, **options: Any) -> None:
    """Begin a call; the recording of a trace, too."""
    found = CALLS[name](*args, **options)
    if name == "AgentSystem.trace":
        found.__enter__()


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A system, an agent and its behaviour, by the name of their class."""
    does = Does()
    folder = tmp_path_factory.mktemp("used")
    with AgentSystem(tiny_llama(), store=folder / "store") as system:
        agent = system.spawn("a", behaviour=does)
        yield {
            "AgentSystem": system,
            "Agent": agent,
            "AgentBehaviour": does,
            "path": folder / "file",
        }


@pytest.mark.parametrize(("name", "parameter"), CASES, ids=".".join)
def test_no_call_takes_what_is_no_such_thing_or_begins_anything(
    used: dict[str, Any], name: str, parameter: str
) -> None:
    system, given = used["AgentSystem"], dict(GOOD, path=used["path"])
    parameters = inspect.signature(CALLS[name]).parameters
    options: dict[str, Any] = {
        each.name: given[each.name]
        for each in parameters.values()
        if each.default is inspect.Parameter.empty and each.name in given
    }
    if "prompt" in parameters:
        options["prompt"] = "p"
    before = system.agents(), system.dead_letters(), system.stats()["agents"]

    with pytest.raises(KvactorsError) as raised:
        call(name, used[name.split(".")[0]], **{**options, parameter: Wrong()})

    assert isinstance(raised.value, InvalidInput), raised.value
    assert not system.parts.lifecycle.outstanding.turns()
    assert system.wait_idle(WAIT)
    assert before == (system.agents(), system.dead_letters(), system.stats()["agents"])
    assert not used["path"].exists()
    assert not used["Agent"].transcript().turns


def deep(levels: int) -> list[Any]:
    """A list in a list, so many times."""
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


REFUSED: dict[str, Callable[[AgentSystem, Agent, AgentBehaviour, Path], Any]] = {
    "a parent that is nobody": lambda s, a, b, p: s.spawn("b", parent="nobody"),
    "a flag that is text": lambda s, a, b, p: s.spawn("b", wait="no"),  # type: ignore[arg-type]
    "a match that is text": lambda s, a, b, p: a.ask("x", match="no"),  # type: ignore[arg-type]
    "one agent to broadcast to": lambda s, a, b, p: b.broadcast("m", to="abc"),
    "a template of one's own": lambda s, a, b, p: a.ask(
        "x", template_kwargs={"chat_template": "x"}
    ),
    "what is too deep": lambda s, a, b, p: a.ask("x", template_kwargs={"mood": deep(9000)}),
    "what is no number": lambda s, a, b, p: a.ask("x", template_kwargs={"mood": math.nan}),
    "what is too long": lambda s, a, b, p: a.ask("x", template_kwargs={"mood": "x" * 20_000}),
    "a template for what is raw": lambda s, a, b, p: a.ask([65], template_kwargs={"mood": 1}),
    "a template for a whole text": lambda s, a, b, p: b.think(
        "x", match=True, template_kwargs={"mood": 1}
    ),
    "one choice": lambda s, a, b, p: b.think("x", choices="abc"),
    "choices without an order": lambda s, a, b, p: b.think("x", choices={"a", "b"}),
    "an option of think": lambda s, a, b, p: b.think("x", prioritty=3),
    "an option of stream": lambda s, a, b, p: a.stream("x", prioritty=3),  # type: ignore
    "an option of swap_model": lambda s, a, b, p: s.swap_model("x", kv_bit=3),  # type: ignore
    "a half character of a name": lambda s, a, b, p: s.swap_model("x", model_name=HALF),
    "a NUL in a path": lambda s, a, b, p: s.export_agent("a", "x\0y"),
    "tokens of an archive": lambda s, a, b, p: s.import_agent(p, "b", tokens="x"),  # type: ignore
    "options of a backup": lambda s, a, b, p: s.backup("memory:///", 3),  # type: ignore[arg-type]
    "a timeout of get": lambda s, a, b, p: a.request(None).get(timeout="x"),  # type: ignore
    "a journal to replay": lambda s, a, b, p: replay(3, {}),  # type: ignore[arg-type]
    "behaviours to replay": lambda s, a, b, p: replay(p, 3),  # type: ignore[arg-type]
    "types to replay": lambda s, a, b, p: replay(p, {}, types=3),  # type: ignore[arg-type]
    "a draft model": lambda s, a, b, p: DraftModel(3),  # type: ignore[arg-type]
    "a flag of sampling": lambda s, a, b, p: Sampling(top_logprobs=1, prompt_logprobs="x"),  # type: ignore
    "a half character of a summary": lambda s, a, b, p: Summarize(prompt=HALF),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_near_to_right_is_refused_as_well(used: dict[str, Any], what: str) -> None:
    system, agent, behaviour = (used[n] for n in ("AgentSystem", "Agent", "AgentBehaviour"))

    with pytest.raises(InvalidInput):
        REFUSED[what](system, agent, behaviour, used["path"])

    assert not agent.transcript().turns
    assert [each.agent_id for each in system.agents()] == ["a"]


@pytest.mark.parametrize(
    "options",
    [
        {"model_name": HALF},
        {"template_kwargs": {1: 2}},
        {"template_kwargs": {"a": ["b", {"c": HALF}]}},
    ],
)
def test_a_system_takes_no_names_that_are_none(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        AgentSystem(tiny_llama(), store=False, **options)


def test_a_trace_that_cannot_be_written_is_refused_before_it_is_recorded(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    system = open_system(store=False)

    with pytest.raises(OSError, match="nowhere"):
        system.trace(tmp_path / "nowhere" / "x").__enter__()
