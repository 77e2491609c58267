"""A memory that is cut within a piece of several blocks goes on as if it had never been longer."""

import pytest
from makers import OpenSystem, prompt_of

from kvactors.actors import Sampling
from kvactors.core.testing.models import grid

SHORT = Sampling(max_tokens=8)
WAIT = 60
LONG = prompt_of(1500)
REST = prompt_of(90, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("place", [1, 255, 256, 300, 700, 1023, 1024, 1100, 1300, 1499])
def test_a_cut_within_a_long_piece_leaves_no_hole(open_grid: OpenSystem, place: int) -> None:
    system = open_grid(grid)
    cut, alone = system.spawn("cut"), system.spawn("alone")
    cut.ask(LONG, sampling=SHORT).get(timeout=WAIT)
    cut.rewind(to_token=place).get(timeout=WAIT)

    for rest in (REST, REST[:30], REST[30:]):
        begin = LONG[:place] if not alone.transcript().turns else []
        asked = cut.ask(rest, sampling=SHORT).get(timeout=WAIT)
        alone_asked = alone.ask([*begin, *rest], sampling=SHORT).get(timeout=WAIT)
        assert asked.token_ids[-8:] == alone_asked.token_ids[-8:]
        assert asked.cached.get(timeout=WAIT)
        system.check()

    assert cut.transcript().token_ids == alone.transcript().token_ids
