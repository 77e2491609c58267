"""How a step ended, and its record. The runner's thread."""

from dataclasses import dataclass
from typing import Any

from kvactors.actors.runtime.futures import resolved
from kvactors.actors.scenarios.files.expected import as_expected
from kvactors.actors.scenarios.files.schema import ProbeWords
from kvactors.actors.scenarios.journal.file import Record
from kvactors.actors.scenarios.journal.records import Event, Failure, Heard, Turn
from kvactors.actors.scenarios.running.steps import Step
from kvactors.actors.turns.reply import Reply, Timing, Usage

__all__ = ["Failed", "Happened", "Outcome", "Replied", "diverged", "record_of", "same", "spoken"]


@dataclass(frozen=True, slots=True)
class Replied:
    """An agent answered or observed. `begun`: seconds since this process took the run up."""

    reply: Reply
    begun: float


@dataclass(frozen=True, slots=True)
class Failed:
    """It failed, and the agent is as it was before."""

    error: str
    text: str


@dataclass(frozen=True, slots=True)
class Happened:
    """Something befell the run, `at` these seconds since it began."""

    at: float


Outcome = Replied | Failed | Happened


def spoken(text: str, begun: float) -> Replied:
    """What a behaviour said by itself, ready at `begun`: no tokens, no time."""
    none, no_time = Usage(0, 0, 0, 0, 0), Timing(0.0, 0.0, 0.0, 0.0, 0.0)
    cache: Any = ""
    kept: Any = resolved()
    reply = Reply(text, (), "stop", cache, None, none, no_time, kept, kept, answer=text)
    return Replied(reply, begun)


def record_of(step: Step, outcome: Outcome, memory: int) -> Record:
    """The record of a step with its `outcome`; its agent remembered `memory` exchanges before."""
    if isinstance(outcome, Happened):
        return Event(step.number, step.kind, _befalls(step), outcome.at)
    where = (step.agent, step.phase, step.round, step.branch.path)
    if isinstance(outcome, Failed):
        text = outcome.text.encode(errors="backslashreplace").decode()
        probed = _of_probe(step, None)
        return Failure(step.number, *where, outcome.error, text, step.part, **probed)
    if step.kind == "hear":
        return _heard(step, outcome.reply, memory + 1)
    return _turn(step, outcome, memory + (step.kind != "probe" and step.said is None))


def _befalls(step: Step) -> str:
    """What becomes of the run, as the text of an event."""
    return step.detail if step.kind != "fork" else f"{step.lane} -> {step.detail}"


def _heard(step: Step, reply: Reply, memory: int) -> Heard:
    source, call = step.source, step.call
    assert source is not None
    assert call is not None
    told = source.kind == "tell"
    return Heard(
        step=step.number,
        source=source.number,
        agent=step.agent,
        phase=step.phase,
        round=step.round,
        branch=step.branch.path,
        prefilled_tokens=reply.usage.prefilled_tokens,
        memory=memory,
        text=call.text if told else "",
        speaker=source.agent if told and source.form is not None else "",
        part=step.part,
    )


def _turn(step: Step, outcome: Replied, memory: int) -> Turn:
    reply, call = outcome.reply, step.call
    assert call is not None
    usage, timing = reply.usage, reply.timing
    return Turn(
        step=step.number,
        verb=step.kind,  # type: ignore[arg-type]
        agent=step.agent,
        phase=step.phase,
        round=step.round,
        name=step.name,
        branch=step.branch.path,
        prompt=call.text,
        answer=reply.answer,
        scores=None if reply.scores is None else dict(reply.scores),
        heard_by=step.listeners,
        heard=step.heard,
        cache=reply.cache,
        finish=reply.finish_reason,
        prompt_tokens=usage.prompt_tokens,
        reused_tokens=usage.reused_tokens,
        prefilled_tokens=usage.prefilled_tokens,
        generated_tokens=usage.generated_tokens,
        begun=outcome.begun,
        queued=timing.queued,
        restore=timing.restore,
        prefill=timing.prefill,
        first_token=timing.first_token,
        total=timing.total,
        memory=memory,
        part=step.part,
        **_of_probe(step, reply.answer),
    )


def _of_probe(step: Step, answer: str | None) -> dict[str, Any]:
    """What a record has of a probe alone: without an answer, what is expected was not said."""
    words, call = step.words, step.call
    if not isinstance(words, ProbeWords) or call is None:
        return {}
    right = None
    if call.expected is not None:
        right = answer is not None and as_expected(answer, call.expected, words.match, call.choices)
    return {
        "expected": _expected(step),
        "right": right,
        "about": words.about,
        "distance": step.distance,
    }


def _expected(step: Step) -> str | None:
    """The answer that a step wants, if it is a probe of what was told."""
    words, call = step.words, step.call
    if not isinstance(words, ProbeWords) or call is None or words.never_told:
        return None
    return call.expected


def same(step: Step, record: Record, *, exactly: bool = False) -> bool:
    """Whether a record is of this step: what was asked is what the scenario asks now; `exactly`:
    and how it is answered, and what a probe expected is what it expects."""
    if isinstance(record, Event):
        return (record.kind, record.text) == (step.kind, _befalls(step))
    if (record.agent, record.branch) != (step.agent, step.branch.path):
        return False
    if step.failed is not None:
        return isinstance(record, Failure) and record.error == step.failed[0]
    if isinstance(record, Turn):
        asked = step.asks and step.call is not None and record.prompt == step.call.text
        if exactly and not (_answered_alike(step, record) and record.expected == _expected(step)):
            return False
        return asked and step.said in (None, record.answer)
    if isinstance(record, Heard):
        told = step.source is not None and step.source.kind == "tell"
        text = step.call.text if step.call is not None and told else ""
        return step.kind == "hear" and record.text == text
    return step.said is None and (step.asks or step.kind == "hear")


def _answered_alike(step: Step, record: Turn) -> bool:
    """Whether a record's step was answered as this one is: between the same choices, if between
    any. What code says has no scores."""
    choices = () if step.call is None else step.call.choices
    among = step.said is not None or set(record.scores or ()) == set(choices)
    return among and record.verb == step.kind


def diverged(step: Step | None, record: Record) -> str:
    """That a journal and a scenario are not of one run."""
    what = "it has no such step" if step is None else f"there it is a {step.kind} of {step.agent!r}"
    pairs: list[tuple[str, object, object]] = []
    if step is not None and isinstance(record, Event):
        pairs = [("namely", _befalls(step), record.text)]
    elif step is not None and step.call is not None and isinstance(record, Turn):
        pairs = [
            ("with the prompt", step.call.text, record.prompt),
            ("between", sorted(step.call.choices), sorted(record.scores or step.call.choices)),
            ("which answers", record.answer if step.said is None else step.said, record.answer),
            ("which expects", _expected(step), record.expected),
        ]
    what += "".join(f", {w} {ours!r:.80} and not {b!r:.80}" for w, ours, b in pairs if ours != b)
    return (
        f"step {record.step} of the journal is not what the scenario says now ({what}): go on with "
        "the scenario as it was, or begin another run"
    )
