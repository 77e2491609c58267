"""Records of runs that nobody ran, for tests of what reads them."""

from typing import Any

from kvactors.actors.scenarios.journal.records import Event, Header, Heard, Metric, Run, Turn
from kvactors.actors.scenarios.results.measure import measure

__all__ = ["make_heard", "make_run", "make_turn", "probe"]


def make_turn(step: int, agent: str = "ann", phase: str = "first", **changes: Any) -> Turn:
    """A turn of half a second that begins a second after the one of the step before."""
    fields: dict[str, Any] = {
        "verb": "ask",
        "round": 1,
        "name": "ask",
        "branch": "",
        "prompt": "What is it?",
        "answer": "It is that.",
        "scores": None,
        "heard_by": (),
        "heard": (),
        "cache": "hot",
        "finish": "stop",
        "prompt_tokens": 30,
        "reused_tokens": 20,
        "prefilled_tokens": 10,
        "generated_tokens": 4,
        "begun": float(step),
        "queued": 0.01,
        "restore": 0.0,
        "prefill": 0.1,
        "first_token": 0.2,
        "total": 0.5,
        "memory": 1,
    }
    return Turn(step=step, agent=agent, phase=phase, **fields | changes)


def probe(step: int, *, right: bool, expected: str | None = "4711", **changes: Any) -> Turn:
    """A question outside the story, answered right or wrong."""
    fields: dict[str, Any] = {"verb": "probe", "name": "code"}
    return make_turn(step, right=right, expected=expected, **fields | changes)


def make_heard(step: int, source: int, agent: str = "bob", **changes: Any) -> Heard:
    """Ten tokens that an agent observed."""
    fields: dict[str, Any] = {
        "phase": "first",
        "round": 1,
        "branch": "",
        "prefilled_tokens": 10,
        "memory": 1,
    }
    return Heard(step=step, source=source, agent=agent, **fields | changes)


def make_run(
    *turns: Turn,
    heard: tuple[Heard, ...] = (),
    seed: int = 1,
    own: tuple[Metric, ...] = (),
    **changes: Any,
) -> Run:
    """A run of these turns, with their metrics and `own` ones."""
    agents = dict.fromkeys([*(turn.agent for turn in turns), *(each.agent for each in heard)])
    phases = dict.fromkeys(turn.phase for turn in turns)
    header = Header(
        scenario="yard",
        label=f"seed-{seed}",
        seed=seed,
        parameters=changes.pop("parameters", {}),
        model="default",
        agents=tuple(agents),
        phases=tuple(phases),
        source=changes.pop("source", {}),
        begun=changes.pop("begun", 1_700_000_000.0),
    )
    fields: dict[str, Any] = {
        "failures": (),
        "events": (Event(0, "process", "pid 1", 0.0),),
        "ended": True,
    }
    fields |= changes
    metrics = (*measure(turns, heard, fields["failures"]), *own)
    return Run(header=header, turns=turns, heard=heard, metrics=metrics, **fields)
