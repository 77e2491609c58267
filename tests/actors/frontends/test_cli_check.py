"""`kvactors check`: it passes on this machine, and a bug fails it with the line that names it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from seeded import Bug, bug, seeded
from typer.testing import CliRunner

from kvactors.actors.frontends.cli.app import app
from kvactors.bench.check import device
from kvactors.bench.check.conversations import Heard, converse
from kvactors.bench.check.exactness import Judge, forked
from kvactors.bench.check.figures import SMALL, figure
from kvactors.bench.check.finding import look
from kvactors.bench.check.kinds import KINDS, Kind
from kvactors.bench.peer_process import PeerFailed
from kvactors.bench.regime import Regime, Side, Sides
from kvactors.bench.setup import Setup
from kvactors.core.arena import kv_layer
from kvactors.core.arena.kv_rows import KVRows
from kvactors.core.arena.pieces import Piece
from kvactors.core.arena.pools import Pool
from kvactors.core.arena.recurrent_layer import StateRows
from kvactors.core.attention.plan import causal_mask
from kvactors.core.engine import kv_transfer
from kvactors.core.engine.hot_cache import HotCaches

# Each takes models through whole conversations.
pytestmark = pytest.mark.slow

FULL = KINDS[0]


def check(*options: str) -> tuple[int, str]:
    """Status and output of the command."""
    result = CliRunner().invoke(app, ["check", *options])
    return result.exit_code, result.stdout or result.stderr


def verdicts(text: str) -> dict[str, str]:
    """Of the lines of a report, by the names of checks."""
    columns = (line.rsplit(" s  ", 1)[0].split() for line in text.splitlines() if " s  " in line)
    return {" ".join(words[:-2]): words[-2] for words in columns}


def test_here_everything_holds_and_the_report_says_on_what() -> None:
    status, text = check("--only", "full", "--only", "window", "--only", "recurrent")

    kinds = ("full attention", "sliding window", "recurrent (SSM)")
    checks = ("alone", "batched", "restarted", "forked", "arithmetic")
    assert status == 0
    assert verdicts(text) == {f"{kind}: {name}": "held" for kind in kinds for name in checks}
    assert all(f"\n{name} " in f"\n{text}" for name in ("device", "mlx", "mlx_lm", "kvactors"))
    assert "15 held;" in text


@bug(kv_layer.KVLayer, "offset")
def positions_off_by_one_in_company(true: Any) -> Any:
    return property(lambda self: true.fget(self) + (1 if len(self.table) > 1 else 0))


@bug(Pool, "move")
def the_hole_is_not_filled(true: Any) -> Any:
    return lambda self, target, source: None


def zeroed(piece: Piece) -> Piece:
    """Of the same tokens, without anything that was known of them."""
    groups = tuple({name: array * 0 for name, array in group.items()} for group in piece.groups)
    return Piece(piece.start, piece.end, groups, piece.spec)


@bug(kv_transfer, "from_raw")
def what_is_read_is_lost(true: Any) -> Any:
    return lambda *args: zeroed(true(*args))


@bug(HotCaches, "fork")
def a_child_forgets(true: Any) -> Any:
    def fork(self: Any, parent: str, child: str, *copies: Any) -> Any:
        cache = true(self, parent, child, *copies)
        cache.pieces = [zeroed(piece) for piece in cache.pieces]
        return cache

    return fork


@bug(Pool, "load")
def a_piece_is_loaded_one_token_late(true: Any) -> Any:
    def load(self: Any, slot: int, start: int, arrays: Any) -> None:
        late = {name: array[:, :, :-1] for name, array in arrays.items()}
        true(self, slot, start + 1, late)

    return load


@bug(KVRows, "load")
def a_checkpoint_lacks_a_token(true: Any) -> Any:
    def load(self: Any, row: int, start: int, end: int, arrays: Any) -> None:
        if self.layer.window:
            arrays = {n: mx.concatenate([a[:, :, :-1], a[:, :, :1]], 2) for n, a in arrays.items()}
        true(self, row, start, end, arrays)

    return load


@bug(StateRows, "copy_row")
def the_state_of_a_joining_row_is_not_copied(true: Any) -> Any:
    return lambda self, row, other, source: None


@bug(kv_layer, "attend")
def a_key_is_dropped(true: Any) -> Any:
    def attend(queries: Any, stored: Any, plan: Any) -> Any:
        others = mx.arange(stored.keys[0].shape[-2]) != 1
        mask = plan.mask
        if isinstance(mask, str):
            mask = causal_mask(queries.shape[2], len(others))
        seen = others[None, None, None] if mask is None else mask & others
        seen = mx.broadcast_to(seen, (len(queries), *seen.shape[1:]))
        return true(queries, stored, replace(plan, mask=seen))

    return attend


@bug(mx, "quantized_matmul")
def products_lose_the_last_row(true: Any) -> Any:
    def multiply(x: mx.array, *args: Any, **how: Any) -> mx.array:
        found = true(x, *args, **how)
        return mx.concatenate([found[..., :-1, :], found[..., -1:, :] * 0], axis=-2)

    return multiply


BUGS = [
    ("full attention", "ProbeFailed", positions_off_by_one_in_company),
    ("full attention", "batched", the_hole_is_not_filled),
    ("full attention", "restarted", what_is_read_is_lost),
    ("full attention", "forked", a_child_forgets),
    ("full attention", "alone", a_piece_is_loaded_one_token_late),
    ("sliding window", "alone", a_checkpoint_lacks_a_token),
    ("recurrent", "batched", the_state_of_a_joining_row_is_not_copied),
    ("experts", "arithmetic", a_key_is_dropped),
    ("quantized products", "", products_lose_the_last_row),
]


@pytest.mark.parametrize(("name", "part", "seed"), BUGS, ids=str)
def test_a_bug_ends_in_status_1_and_the_line_that_names_it(name: str, part: str, seed: Bug) -> None:
    with seeded(seed):
        status, text = check("--only", name)

    broken = [line for line in text.splitlines() if " violated " in line]
    assert status == 1
    assert any(line.startswith(name) and part in line for line in broken), text


@bug(mx, "quantized_matmul")
def the_device_has_no_kernel(true: Any) -> Any:
    def refuse(*_args: Any, **_how: Any) -> None:
        raise RuntimeError("no kernel for this shape")

    return refuse


def test_a_check_that_cannot_run_is_a_violation_and_the_others_go_on() -> None:
    with seeded(the_device_has_no_kernel):
        status, text = check("--only", "products", "--only", "recurrent")

    assert status == 1
    assert "RuntimeError: no kernel for this shape" in text
    assert verdicts(text)["recurrent (SSM): batched"] == "held"


# -- where sums may depend on the company ------------------------------------------------


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Heard:
    """What the first kind said."""
    return converse(FULL.build, tmp_path_factory.mktemp("store"), attention="packed")


def changed(heard: Heard) -> Heard:
    """The same, but for a token of the third child's."""
    reply = heard.forked[2]
    tokens = list(reply.token_ids)
    tokens[4] = (tokens[4] + 1) % 128
    forked = list(heard.forked)
    forked[2] = replace(reply, token_ids=tuple(tokens))
    return replace(heard, forked=forked)


class Undecided(Kind):
    """A kind to which all tokens are equally likely."""

    def build(self) -> tuple[Any, Any]:
        model, tokenizer = super().build()
        model.lm_head.weight = model.lm_head.weight * 0
        return model, tokenizer


def test_another_token_is_a_violation_unless_the_two_likeliest_are_nearly_the_same(
    heard: Heard,
) -> None:
    wrong = changed(heard)
    undecided = Undecided(FULL.name, FULL.family)

    assert forked(heard, Judge(FULL, exact=False)).verdict == "held"
    assert forked(wrong, Judge(FULL, exact=True)).verdict == "violated"
    assert forked(wrong, Judge(FULL, exact=False)).verdict == "violated"
    assert forked(wrong, Judge(undecided, exact=False)).verdict == "allowed"
    assert forked(wrong, Judge(undecided, exact=True)).verdict == "violated"


def test_a_difference_is_named_by_its_place(heard: Heard) -> None:
    answer = forked(changed(heard), Judge(FULL, exact=False))

    assert answer.detail.startswith("agent 2, turn 3, token 5: ")
    assert "margin" in answer.detail
    assert answer.numbers == {"compared": 6, "different": 1, "near_ties": 0}


@contextmanager
def negative(_setup: Setup) -> Iterator[Sides]:
    """Less than nothing."""
    yield lambda: Side(-3504.0), lambda: Side(2048.0)


@contextmanager
def failing(_setup: Setup) -> Iterator[Sides]:
    """A peer that this device cannot run."""
    raise RuntimeError("not implemented")
    yield


@contextmanager
def peerless(_setup: Setup) -> Iterator[Sides]:
    """A peer that fails in its own process."""
    raise PeerFailed("not implemented")
    yield


@pytest.mark.parametrize("measure", [negative, failing, peerless])
def test_what_is_no_measurement_is_neither_a_figure_nor_a_violation(measure: Any) -> None:
    regime = Regime("line", "nobody", 1.0, measure, unit="bytes", runs=1)

    found = look("line", lambda: figure(regime, Setup(SMALL)), raising="unmeasured")

    assert found.answer.verdict == "unmeasured"


@bug(device, "SECONDS")
def there_is_no_time(true: float) -> float:
    return 0.0


def test_products_that_were_not_looked_at_are_named() -> None:
    with seeded(there_is_no_time):
        answer = device.products()

    assert answer.verdict == "skipped"
    assert "29 of 30 kinds of layer were not looked at in 0 s" in answer.detail
