"""The page of a run or a sweep: one file, without a network. What agents said is text in it,
whatever it contains: the template escapes everything but our own files and matplotlib's pictures,
and a policy in the page keeps every other script from running. Any thread."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from itertools import groupby
from typing import NamedTuple

from kvactors.actors.scenarios.journal.records import (
    Event,
    Failure,
    Heard,
    Run,
    Turn,
    place_of,
)
from kvactors.actors.scenarios.results.figures import Picture
from kvactors.actors.scenarios.results.tables import Row, summary
from kvactors.actors.scenarios.results.talk import conversations, seconds_of

__all__ = ["render"]

ROOM = "kvactors.actors.scenarios.results"
MOST_PAIRS = 50


class Said(NamedTuple):
    """Something of a run in the order of its steps; `kind` is the record's name."""

    kind: str
    record: Turn | Heard | Failure | Event


def render(runs: Sequence[Run], means: Sequence[Row], pictures: Sequence[Picture] | None) -> str:
    """The page of `runs`, whose rows over seeds are the `means`, with `pictures`; None where there
    was nothing to draw with."""
    from jinja2 import Environment, StrictUndefined

    page, style, script = (_file(name) for name in ("report.html", "report.css", "report.js"))
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(story=story, seconds_of=seconds_of)
    header, *rows = summary(means)
    return environment.from_string(page).render(
        runs=runs,
        first=runs[0].header,
        begun=_begun(runs[0].header.begun),
        turns=sum(len(run.turns) for run in runs),
        failures=[(run, failure) for run in runs for failure in run.failures],
        unended=[run for run in runs if not run.ended],
        header=header,
        rows=rows,
        pairs=conversations(runs).most_common(MOST_PAIRS),
        pictures=pictures,
        style=style,
        script=script,
        digest=b64encode(sha256(script.encode()).digest()).decode(),
    )


def _begun(at: float) -> str:
    """When a run began; nothing of a deterministic one, which knows no time."""
    when = datetime.fromtimestamp(at, UTC)
    return f", begun {when:%Y-%m-%d %H:%M} UTC" if at else ""


def story(run: Run) -> Iterator[tuple[str, list[Said]]]:
    """What happened in a run, by phase. What was said stands once, however many heard it; what
    befell the run stands in the phase that was going on."""
    told = (heard for heard in run.heard if heard.text)
    records = [
        *(Said("event", event) for event in run.events),
        *(Said("heard", heard) for heard in told),
        *(Said("turn", turn) for turn in run.turns),
        *(Said("failure", failure) for failure in run.failures),
    ]
    records.sort(key=lambda said: place_of(said.record))
    phase = next((r.phase for _, r in records if not isinstance(r, Event)), "")
    placed = []
    for said in records:
        phase = phase if isinstance(said.record, Event) else said.record.phase
        placed.append((phase, said))
    for name, group in groupby(placed, key=lambda pair: pair[0]):
        yield name, [said for _, said in group]


def _file(name: str) -> str:
    return files(ROOM).joinpath(name).read_text(encoding="utf-8")
