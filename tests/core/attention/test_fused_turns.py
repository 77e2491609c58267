"""Whole conversations over the kernels of an NVIDIA GPU, which run on this CPU: as without them."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import mlx.core as mx
import pytest
from cuda_on_cpu import on_this_cpu
from seeded import Bug, bug, seeded

from kvactors.actors import AgentSystem, Sampling
from kvactors.core.attention import attend as attending
from kvactors.core.attention.fused_cuda import attend_fused, attend_together_fused
from kvactors.core.attention.policy import AttentionPolicy
from kvactors.core.cache.spec import LayerSpec
from kvactors.core.model import device_probe, load, workspace
from kvactors.core.model.device_probe import PRODUCT_TOLERANCE, product_errors
from kvactors.core.model.workspace import WorkSpace
from kvactors.core.quant import products
from kvactors.core.quant.device import on_cpu
from kvactors.core.testing.models import tiny_llama

pytestmark = pytest.mark.skipif(not on_cpu(), reason="a GPU has its kernels in all other tests")

WAIT = 120
BEGINNING = [7, 3, 11, 5] * 80
PLACES = (attending, device_probe, products)


def yes(_true: Any) -> Callable[[], bool]:
    return lambda: True


def of_a_gpu(_true: Any) -> Callable[..., AttentionPolicy]:
    """What is measured on a GPU: no codes are taken as floats."""
    return lambda *_args, **_kwargs: AttentionPolicy(threshold=2, launch_tokens=1)


@contextmanager
def as_on_cuda(*more: Bug) -> Iterator[list[str]]:
    """As where MLX computes on an NVIDIA GPU; the kernels that attended, one after the other."""
    asked: list[str] = []

    def counted(kernel: Callable[..., mx.array]) -> Callable[[Any], Any]:
        def call(*args: Any) -> mx.array:
            asked.append(kernel.__name__)
            return kernel(*args)

        return lambda _true: call

    bugs = [bug(place, "on_cuda")(yes) for place in PLACES]
    bugs += [
        bug(attending, each.__name__)(counted(each))
        for each in (attend_fused, attend_together_fused)
    ]
    with ExitStack() as stack:
        for each in (on_this_cpu, bug(load, "choose_policy")(of_a_gpu), *bugs, *more):
            stack.enter_context(seeded(each))
        yield asked


def conversations(asked: list[str] | None = None) -> list[tuple[int, ...]]:
    """What four agents say that begin alike, together, and again; what was `asked` of kernels until
    the model was loaded is forgotten."""
    sampling = Sampling(max_tokens=6)
    with AgentSystem(tiny_llama(), store=False, speculation="off") as system:
        if asked:
            asked.clear()
        parent = system.spawn("parent")
        parent.ask(BEGINNING, sampling=sampling).get(timeout=WAIT)
        children = [system.spawn(f"child {n}", from_=parent) for n in range(4)]
        said = []
        for turn in range(2):
            replies = [
                child.ask([n + 1, turn + 2, 9], sampling=sampling)
                for n, child in enumerate(children)
            ]
            said += [reply.get(timeout=WAIT).token_ids for reply in replies]
    return said


def test_conversations_are_the_same_over_the_kernels(caplog: pytest.LogCaptureFixture) -> None:
    plain = conversations()

    with as_on_cuda() as asked:
        assert conversations() == plain

    # Each row by itself, and what rows begin with once for all of them.
    assert {*asked} == {"attend_fused", "attend_together_fused"}
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize("queries", [1, 16])
@pytest.mark.parametrize("dim", [64, 128])
def test_a_kernel_of_any_number_of_queries_and_any_kind_of_layer_is_looked_at(
    queries: int, dim: int
) -> None:
    @bug(device_probe, "attend_fused")
    def wrong(true: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def call(asked: mx.array, *args: Any) -> mx.array:
            faulty = asked.shape[2:] == (queries, dim)
            return true(asked, *args) * (1.1 if faulty else 1)

        return call

    layers = [LayerSpec("full", 2, each, 4, 64, "bfloat16") for each in (64, 128)]
    with as_on_cuda(wrong):
        errors = dict(product_errors(layers, 1024, heads=6))

    assert {name for name, error in errors.items() if not error <= PRODUCT_TOLERANCE} == {
        f"{queries}x{dim} over {keys} keys, 4 bits" for keys in (1023, 1024)
    }
    assert len(errors) == 8


def test_scores_of_what_rows_share_have_their_room_where_kernels_keep_none() -> None:
    space = WorkSpace(token=1.0, pair=300.0, key=8.0, decoded=50.0)

    here = space.decode(8, 4096, 2048, 8 * 2048)
    with seeded(bug(workspace, "on_cuda")(yes)):
        there = space.decode(8, 4096, 2048, 8 * 2048)
        alone = space.decode(8, 4096)

    assert there - here == 8 * 2048 * (300 - 50)
    assert alone == space.decode(8, 4096)


def test_kernels_that_are_wrong_are_found_at_load_and_not_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = conversations()

    @bug(device_probe, "attend_fused")
    def wrong(true: Callable[..., mx.array]) -> Callable[..., mx.array]:
        return lambda *args: true(*args) * 1.1

    with as_on_cuda(wrong) as asked:
        assert conversations(asked) == plain

    assert not asked
    (record,) = (each for each in caplog.records if each.levelno >= logging.WARNING)
    assert "1x64 over 1023 keys, 4 bits" in record.getMessage()
