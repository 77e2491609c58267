"""Answers that are only scored leave no trace, whatever kind of cache the model has."""

from collections.abc import Callable

import pytest
from makers import LoadFamily, MakeEngine

from kvactors.actors import AgentSystem
from kvactors.core.errors import InvalidSampling
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.families import build
from kvactors.core.testing.models import PlainTokenizer

FAMILIES = ("gemma3_text", "deepseek_v3", "mamba2", "lfm2", "recurrent_gemma")
# One of a single token, one as long as a block.
CHOICES = ((5,), (6, 7, 8, 0), (9,) * 256)


def choosing(prompt: list[int], choices: tuple[tuple[int, ...], ...]) -> Request:
    request = make_request("a", [], prompt, Sampling(max_tokens=256))
    request.choices = choices
    return request


@pytest.mark.parametrize("prompt", [[3], [3, 1, 4] * 8], ids=["one token", "many"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_choice_is_scored_and_taken_as_if_there_were_no_other(
    load_family: LoadFamily, make_engine: MakeEngine, family: str, prompt: list[int]
) -> None:
    loaded = load_family(family)
    alone = []
    for choice in CHOICES:
        engine = make_engine(loaded, stored=True)
        alone.append(run_engine(engine, [(0, choosing(prompt, (choice,)))])["a"])

    end = run_engine(make_engine(loaded, stored=True), [(0, choosing(prompt, CHOICES))])["a"]

    assert end.request.scores == tuple(one.request.scores[0] for one in alone)
    taken = alone[CHOICES.index(tuple(end.request.generated))]
    assert [part.tensors for part in end.exported] == [part.tensors for part in taken.exported]


def test_a_choice_that_a_window_cannot_take_back_is_refused(
    open_grid: Callable[..., AgentSystem],
) -> None:
    agent = open_grid(lambda: (build("gemma3_text"), PlainTokenizer()), store=False).spawn("a")

    with pytest.raises(InvalidSampling, match=r"a choice of 258 tokens: .* take back 256 at most"):
        agent.ask("Which?", sampling=Sampling(choices=("a", "b" * 257))).get(timeout=60)
