"""Turns of every form, for tests of drafts: what they say and keep is to be the same as without."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from makers import prompts_of
from seeded import bug, seeded

from kvactors import Grammar, Sampling
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.events import Finished
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.speculation.acceptance import Costs
from kvactors.core.schedule.speculation.speculation import Speculation, SpeculationConfig
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.models import snap_to_grid, tiny_model

__all__ = [
    "FORMS",
    "ON",
    "SHORT_OF_MEMORY",
    "Drafts",
    "another",
    "drafting",
    "ends",
    "it_is_known_at_once",
    "itself",
    "said",
    "saved",
    "slipping",
    "to_draft_costs_nothing",
    "turns",
]

ON = SpeculationConfig()
Drafts = dict[Request, Sequence[int]]

FORMS = (
    Sampling(max_tokens=40),
    Sampling(max_tokens=31, temperature=0.9, seed=3, top_p=0.95),
    Sampling(max_tokens=27, temperature=0.6, seed=4, repetition_penalty=1.4, top_k=30),
    Sampling(max_tokens=33, repetition_penalty=1.2),
    Sampling(max_tokens=24, temperature=1.2, seed=5, min_p=0.02, top_logprobs=2),
    # What may come is another thing at each place.
    Sampling(max_tokens=30, grammar=Grammar.regex("[a-z]([a-m][n-z]){10,}!")),
)
LENGTHS = (40, 7, 300, 64, 1, 90)
# Bytes in which the turns do not all fit at once.
SHORT_OF_MEMORY = 1_500_000


@bug(Costs, "known")
def it_is_known_at_once(_true: Any) -> Any:
    return lambda _costs, _rows: True


@bug(Costs, "draft")
def to_draft_costs_nothing(_true: Any) -> Any:
    return lambda _costs, _rows: 0.0


def turns() -> list[Request]:
    """One of each form; the one with a grammar can end."""
    prompts = prompts_of(LENGTHS, seed=2)
    return [
        make_request(f"{row}", [], prompt, form, stop_tokens=[0] if form.grammar else (), turn=row)
        for row, (prompt, form) in enumerate(zip(prompts, FORMS, strict=True))
    ]


def ends(engine: Any, requests: Sequence[Request], on_step: Any = None) -> dict[str, Finished]:
    arrivals = [(3 * number, request) for number, request in enumerate(requests)]
    return run_engine(engine, arrivals, on_step)


def said(found: Mapping[str, Finished]) -> dict[str, list[int]]:
    return {name: end.request.generated for name, end in found.items()}


def saved(found: Mapping[str, Finished]) -> dict[str, list[Any]]:
    return {name: [part.tensors for part in end.exported] for name, end in found.items()}


@contextmanager
def drafting(true: Mapping[str, list[int]], right: int, wrong: int) -> Iterator[list[int]]:
    """Every turn is given its next `right` tokens and so many that are `wrong`, in every round that
    has nothing in flight; how many were given in each."""
    given: list[int] = []

    def tokens(request: Request) -> Sequence[int]:
        left = request.sampling.max_tokens - request.decoded - 1
        if left <= 0:
            return ()
        next_ones = true[request.agent_id][request.decoded : request.decoded + right]
        falsely = [token + 1 for token in true[request.agent_id][-1:]] * wrong
        draft = [*next_ones, *falsely][:left]
        if request.guide is None:
            return draft
        # What is wrong may be allowed, too.
        draft = [*next_ones, *b"xyz"[:wrong]][:left]
        request.guide.follow(request.generated)
        return draft[: request.guide.takes(draft)]

    @bug(Speculation, "drafts")
    def known(_true: Any) -> Any:
        def drafts(_self: Speculation, requests: Sequence[Request]) -> Drafts:
            found = {request: tokens(request) for request in requests}
            found = {request: draft for request, draft in found.items() if draft}
            given.extend(map(len, found.values()))
            return found

        return drafts

    @bug(Speculation, "worth_waiting")
    def always(_true: Any) -> Any:
        return lambda _self, _requests: True

    with seeded(known), seeded(always):
        yield given


# Every so many positions a draft model that slips says another token than its own.
SLIPS = 5


class Slipping:
    """A model that is wrong at every fifth position."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.layers = model.layers

    def __call__(self, tokens: Any, cache: Any) -> Any:
        logits = self._model(tokens, cache=cache)
        return logits if cache[0].offset % SLIPS else -logits


def itself(loaded: LoadedModel) -> LoadedModel:
    """A model that drafts for itself."""
    return replace(loaded, draft=loaded.model)


def another(loaded: LoadedModel) -> LoadedModel:
    """One that knows nothing of the model that it drafts for."""
    return replace(loaded, draft=snap_to_grid(tiny_model(seed=9)))


def slipping(loaded: LoadedModel) -> LoadedModel:
    """One that is wrong now and then."""
    return replace(loaded, draft=Slipping(loaded.model))
