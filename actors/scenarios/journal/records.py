"""What a run leaves: plain records, as its journal has them. Whoever shows results reads these.

Nothing of them changes: any thread."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Event", "Failure", "Header", "Heard", "Metric", "Run", "Turn", "Verb", "place_of"]

Verb = Literal["say", "ask", "choose", "probe"]


@dataclass(frozen=True, slots=True)
class Header:
    """Whose run it is. `label` names it within its folder; the same scenario, seed, parameters and
    model give the same label."""

    scenario: str  # its name
    label: str  # such as "seed-1" or "seed-1,reward-2"
    seed: int
    parameters: Mapping[str, Any]  # of this run: one value for each
    model: str
    agents: tuple[str, ...]  # in the order of the file
    phases: tuple[str, ...]  # in the order of the file
    begun: float  # seconds since 1970
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the system
    source: Mapping[str, Any] = field(default_factory=dict)  # the scenario as it was checked
    fork_of: str = ""  # "LABEL@STEP", of a run that began as another one


@dataclass(frozen=True, slots=True)
class Turn:
    """An agent was asked something and answered.

    `step` is its place in the order of the file, which is not the order in which turns ended; it
    has gaps, where somebody heard something; what a behaviour did in its step are parts of it.
    Seconds of `begun` count from the begin of this
    process's part of the run, the other ones are those of `Timing`; what replays has them too.
    """

    step: int
    verb: Verb
    agent: str
    phase: str
    round: int  # from 1
    name: str  # of the step: its `as`, else the verb; of a probe its name
    branch: str  # "" before any fork, then "left", "left/again"
    prompt: str
    answer: str
    scores: Mapping[str, float] | None  # log-probabilities of choices
    heard_by: tuple[str, ...]  # who observes the answer
    heard: tuple[int, ...]  # steps of others that it heard since its last turn
    cache: str  # "hot", "warm", "cold"; "" of what a behaviour said, which costs no tokens
    finish: str  # "stop", "length", "cancelled"
    prompt_tokens: int
    reused_tokens: int
    prefilled_tokens: int
    generated_tokens: int
    begun: float
    queued: float
    restore: float
    prefill: float
    first_token: float
    total: float
    memory: int  # exchanges that the agent remembers after it
    expected: str | None = None  # of a probe; None for what was never told
    right: bool | None = None  # of a probe that expects something
    about: str | None = None  # the phase that a probe asks of
    distance: int | None = None  # so many phases that took place ago
    part: int = 0  # what a behaviour did for the step, from 1; 0 is the step itself


@dataclass(frozen=True, slots=True)
class Heard:
    """An agent observed what another said (`source`, its step), or was told a text (`source` is its
    own step then)."""

    step: int
    source: int
    agent: str
    phase: str
    round: int
    branch: str
    prefilled_tokens: int
    memory: int
    text: str = ""  # of what was told; what was said is in the turn of `source`
    speaker: str = ""  # of a text that an agent told; "" where the file itself tells
    part: int = 0  # as of a turn


@dataclass(frozen=True, slots=True)
class Failure:
    """A step that failed; the run went on without it, or ended if the file says so."""

    step: int
    agent: str
    phase: str
    round: int
    branch: str
    error: str  # the name of its class
    text: str
    part: int = 0  # as of a turn
    expected: str | None = None  # of a probe, as of a turn
    right: bool | None = None  # False of a probe that expects something
    about: str | None = None  # as of a turn
    distance: int | None = None  # as of a turn


@dataclass(frozen=True, slots=True)
class Event:
    """What befell the run as a whole: "process" (a process took it up), "restart", "swap", "fork",
    "stop" (a rule ended it), "end". `step` is its place in the order of the file."""

    step: int
    kind: str
    text: str
    at: float  # seconds since the run began


@dataclass(frozen=True, slots=True)
class Metric:
    """One number. What it is not of is None; `count` is of how many turns it is made."""

    name: str
    value: float
    count: int
    agent: str | None = None
    phase: str | None = None
    branch: str | None = None
    distance: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """All of a run, in the order of the file. `ended`: it is not to be gone on with. `process_at`
    has, by a turn's step and part, when the process began that took it, in seconds of the run."""

    header: Header
    turns: tuple[Turn, ...]
    heard: tuple[Heard, ...]
    failures: tuple[Failure, ...]
    events: tuple[Event, ...]
    metrics: tuple[Metric, ...]
    ended: bool
    process_at: Mapping[tuple[int, int], float] = field(default_factory=dict)


def place_of(record: Turn | Heard | Failure | Event) -> tuple[int, bool, int]:
    """Its place in the order of the file: what a behaviour did for a step comes before the step."""
    part = 0 if isinstance(record, Event) else record.part
    return record.step, part == 0, part
