"""An agent whose turn ended within a round goes on after a restart as if nothing had happened."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from forks import held_bytes
from makers import LoadFamily, MakeEngine, prompts_of
from rounds import ON, drafting, said, saved

from kvactors import Sampling
from kvactors.core.cache.segment import Segment
from kvactors.core.engine.engine import Engine
from kvactors.core.schedule.events import Finished, KVNeeded
from kvactors.core.schedule.request import Request
from kvactors.core.testing.engines import make_request, run_engine

NAME = "agent"
ANSWER = Sampling(max_tokens=40, temperature=0.8, seed=3)
# Each token with those that were likeliest: another logit would have another probability.
LOOKED = replace(ANSWER, top_logprobs=5)
# Of a second round of seven tokens.
PLACES = range(8, 12)


def first(stop: Sequence[int] = ()) -> Request:
    (prompt,) = prompts_of((270,), seed=4)
    return make_request(NAME, [], prompt, ANSWER, stop_tokens=stop)


def second(known: Sequence[int]) -> Request:
    return make_request(NAME, known, prompts_of((9,), seed=5)[0], LOOKED, turn=1)


def restored(engine: Engine, request: Request, kept: Sequence[Segment]) -> Finished:
    """The end of a turn whose KV comes from what was exported."""
    engine.submit(request)
    needed = [event for event in engine.step() if isinstance(event, KVNeeded)]
    assert [event.agent_id for event in needed] == [NAME]
    engine.provide(NAME, kept)
    return run_engine(engine, [])[NAME]


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_after_a_restart_right_behind_a_round_the_next_turn_is_the_same(
    load_family: LoadFamily, make_engine: MakeEngine, family: str
) -> None:
    loaded = load_family(family)
    endless = run_engine(make_engine(loaded), [(0, first())])
    answer = endless[NAME].request.generated
    place = next(place for place in PLACES if answer[place] not in answer[:place])
    stop = answer[place]
    plain = make_engine(loaded, stored=True)
    ended = run_engine(plain, [(0, first([stop]))])[NAME]
    never_stopped = run_engine(plain, [(0, second(ended.request.tokens))])[NAME]

    drafted = make_engine(loaded, stored=True, speculation=ON)
    with drafting(said(endless), right=6, wrong=1) as given:
        found = run_engine(drafted, [(0, first([stop]))])[NAME]
    accepted = drafted.stats()["accepted_tokens"]
    anew = make_engine(loaded, stored=True, speculation=ON)
    went_on = restored(anew, second(found.request.tokens), found.exported)

    # It ended within its last round: what followed the stop was right, too, and is gone.
    assert found.reason == "stop"
    assert len(found.request.generated) == place + 1 < accepted + len(given)
    assert went_on.request.kept == len(found.request.tokens) - 1
    assert went_on.request.generated == never_stopped.request.generated
    assert went_on.request.logprobs == never_stopped.request.logprobs
    assert went_on.request.logprobs
    assert saved({NAME: went_on}) == saved({NAME: never_stopped})
    assert held_bytes(anew) == held_bytes(plain)
