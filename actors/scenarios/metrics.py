"""Metrics of somebody's own, beside those that every run has. Any thread, one at a time."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvactors.actors.scenarios.files.own import own_module
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.journal.records import Failure, Metric, Run
from kvactors.actors.scenarios.results.measure import COSTS, SHARES
from kvactors.core.numbers import number, whole

__all__ = ["with_own"]


def with_own(name: str, run: Run, homes: Sequence[Path]) -> Run:
    """A run with what the own function of a `name`, which may be in the `homes`, says of it; one
    that fails is a failure of the run."""
    module, _, attribute = name.partition(":")
    where = ""
    try:
        function = getattr(own_module(module, homes), attribute)
        where = _place_of(function)
        own = [_sound(metric) for metric in function(run)]
        _check_told_once((*run.metrics, *own))
    except (Exception, SystemExit) as error:  # Whatever somebody's function may do.
        text = f"metric {name}{where}: {error}"
        failure = Failure(0, "", "", 0, "", type(error).__name__, text)
        return replace(run, failures=(*run.failures, failure))
    return replace(run, metrics=(*run.metrics, *own))


def _place_of(function: Any) -> str:
    """Where a function is written, such as " (own.py:3)"; of what else can be called nothing."""
    code = getattr(function, "__code__", None)
    return "" if code is None else f" ({Path(code.co_filename).name}:{code.co_firstlineno})"


def _sound(metric: Metric) -> Metric:
    """A metric that tables can take. Raises InvalidScenario."""
    if not isinstance(metric, Metric):
        raise InvalidScenario(f"{metric!r:.80} is no Metric")
    if not isinstance(metric.name, str) or not metric.name:
        raise InvalidScenario(f"a metric is called {metric.name!r:.80}, which is no name")
    value, count = number(metric.value), whole(metric.count)
    if value is None or not math.isfinite(value):
        raise InvalidScenario(f"{metric.name} is {metric.value!r:.80}, which is no number")
    if count is None:
        raise InvalidScenario(f"{metric.name} is made of {metric.count!r:.80}, which is no count")
    for of in (metric.agent, metric.phase, metric.branch):
        if not isinstance(of, str | None):
            raise InvalidScenario(f"{metric.name} is of {of!r:.80}, which is no name")
    if metric.distance is not None and whole(metric.distance) is None:
        raise InvalidScenario(f"{metric.name} is of distance {metric.distance!r:.80}")
    if metric.name in (*SHARES, *COSTS):
        raise InvalidScenario(f"every run has a metric {metric.name}: call yours otherwise")
    return replace(metric, value=value, count=count)


def _check_told_once(metrics: Sequence[Metric]) -> None:
    """Raise InvalidScenario where two numbers are of the same: a table would have two rows of it,
    and a mean over seeds a run too many."""
    told = Counter((m.name, m.agent, m.phase, m.branch, m.distance) for m in metrics)
    for (name, *of), times in told.items():
        if times > 1:
            what = ", ".join(str(one) for one in of if one is not None) or "all of the run"
            raise InvalidScenario(f"{times} values of {name} are of {what}: one is enough")
