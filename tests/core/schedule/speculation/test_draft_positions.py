"""A draft model that was made for fewer positions than the model it drafts for."""

from dataclasses import replace
from typing import Any

from makers import LoadGrid, MakeEngine, prompts_of
from rounds import ends, it_is_known_at_once, to_draft_costs_nothing
from seeded import bug, seeded

from kvactors import Sampling
from kvactors.core.schedule.speculation.chain import Chains
from kvactors.core.schedule.speculation.speculation import SpeculationConfig
from kvactors.core.testing.engines import make_request
from kvactors.core.testing.models import tiny_model

POSITIONS = 64


def test_it_drafts_for_none_beyond_them(load_grid: LoadGrid, make_engine: MakeEngine) -> None:
    loaded, last = load_grid(), list[int]()
    small = replace(loaded, draft=tiny_model(max_position_embeddings=POSITIONS))
    engine = make_engine(small, speculation=SpeculationConfig(share=False))

    @bug(Chains, "draft")
    def watched(true: Any) -> Any:
        def draft(chains: Chains, request: Any, count: int) -> Any:
            last.append(len(request.tokens) + count)
            return true(chains, request, count)

        return draft

    turn = make_request("a", [], prompts_of((40,), 1)[0], Sampling(max_tokens=60))
    with seeded(it_is_known_at_once), seeded(to_draft_costs_nothing), seeded(watched):
        found = ends(engine, [turn])

    assert len(found["a"].request.generated) == 60
    assert last, "nothing was drafted: the test says too little"
    assert max(last) <= POSITIONS
