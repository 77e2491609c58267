"""One step of a run, and what it waits for.

Steps are numbered in the order of the file: what an agent remembers, and what a text can quote, is
what has a smaller number. They end in any order that respects this. The runner's thread.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kvactors.actors.scenarios.files.schema import ProbeWords, SamplingWords, StepWords
from kvactors.core.schedule.sampling import Sampling

__all__ = ["Branch", "Call", "Kind", "NotYet", "Step", "when_ended"]

Kind = Literal[
    "say",
    "ask",
    "choose",
    "tell",
    "probe",
    "hear",
    "lend",
    "fork",
    "swap",
    "restart",
    "stop",
    "end",
]


class NotYet(Exception):  # It is no error: whoever asked comes again.
    """What was asked for depends on `steps` that have not ended."""

    def __init__(self, steps: Sequence["Step"]) -> None:
        self.steps = steps
        super().__init__(f"{len(steps)} steps have not ended")


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of the run, "" before any fork, and what its templates may name."""

    path: str
    variables: Mapping[str, Any]

    def sees(self, other: str) -> bool:
        """Whether what was said in another branch belongs to the past of this one."""
        return not other or self.path == other or self.path.startswith(other + "/")

    def lane(self, agent: str) -> str:
        """The name of an agent within it."""
        return f"{agent}@{self.path}" if self.path else agent


@dataclass(frozen=True, slots=True)
class Call:
    """What an agent is to do for a step: the text it is told, and how it answers."""

    text: str
    choices: tuple[str, ...] = ()
    expected: str | None = None
    sampling: Sampling | None = None  # instead of the file's


@dataclass(eq=False, slots=True)
class Step:
    """One step. `lane` is whose memory it concerns; "" for those of the run as a whole.

    `words` are those of the file. `source` of a `hear` is the step that is heard. A step whose
    agent has a behaviour `holds` its lane, and those that were lent to it by a `lend`, whose
    `source` it is; what the behaviour does in it are its parts, `part` 1 and so on. Filled in on
    the way: `call` when it begins, `said` when its behaviour has spoken, `text` when it ended
    (None: skipped or failed), `heard` the steps that its agent had heard since its last turn.
    """

    number: int
    kind: Kind
    lane: str
    agent: str
    phase: str
    round: int
    branch: Branch
    words: StepWords | ProbeWords | None = None
    listeners: tuple[str, ...] = ()
    form: str | None = None  # in which listeners hear it; None: as it is
    source: "Step | None" = None
    item: Any = None  # of a probe with `each`
    detail: str = ""  # the other lane of a fork, the model of a swap, the reason of a stop
    child: str = ""  # the agent of a fork's other lane
    horizon: int = 0  # what it can quote has a smaller number
    if_heard: bool = False  # of order free: only who heard something goes on
    idle: bool = False  # skipped since nothing was heard
    distance: int | None = None
    call: Call | None = None
    failed: tuple[str, str] | None = None  # before it could begin: the error's name and text
    heard: tuple[int, ...] = ()
    holds: tuple[str, ...] = ()
    part: int = 0
    said: str | None = None
    ended: bool = False
    text: str | None = None
    waiting: list[Callable[[], None]] = field(default_factory=list)

    @property
    def key(self) -> tuple[int, int]:
        """What its record is found by."""
        return self.number, self.part

    @property
    def name(self) -> str:
        """What results call it."""
        return self.words.name if self.words is not None else self.kind

    @property
    def asks(self) -> bool:
        """Whether the model answers it."""
        return self.kind in ("say", "ask", "choose", "probe")

    @property
    def sampling(self) -> SamplingWords:
        """How the file says that it is answered: what its own agent thinks, as the step is."""
        told = self.source if self.part else self
        if told is None or told.words is None or told.lane != self.lane:
            return SamplingWords()
        return told.words.sampling

    def end(self, text: str | None) -> None:
        """It ended with a text; whoever waits for it is told."""
        self.ended, self.text = True, text
        waiting, self.waiting = self.waiting, []
        for tell in waiting:
            tell()


def when_ended(steps: Iterable[Step], then: Callable[[], None]) -> None:
    """Call back once all of these have ended."""
    left = [step for step in steps if not step.ended]
    count = len(left)

    def one_less() -> None:
        nonlocal count
        count -= 1
        if count == 0:
            then()

    for step in left:
        step.waiting.append(one_less)
    if not left:
        then()
