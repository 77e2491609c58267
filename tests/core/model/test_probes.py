"""What the probe at load finds: models that are wrong in a batch, or over all caches of ours."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import llama
from seeded import bug, seeded

from kvactors.actors.frontends.cli.info import step_tokens
from kvactors.core.errors import ProbeFailed
from kvactors.core.model import load as loading
from kvactors.core.model.load import derive_spec, load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.testing.models import PlainTokenizer, tiny_model


def load(model: Any) -> Any:
    return load_model(lambda: (model, PlainTokenizer()), ModelOptions())


def test_a_model_that_is_wrong_with_per_row_offsets_runs_row_by_row() -> None:
    class OffByRow(llama.Model):  # type: ignore[misc]
        """Uses the first row's position for all, as some families do."""

        def __call__(self, inputs: mx.array, cache: Any = None, **kwargs: Any) -> mx.array:
            firsts = cache and [FirstOffset(c) for c in cache]
            logits: mx.array = super().__call__(inputs, firsts, **kwargs)
            return logits

    class FirstOffset:
        def __init__(self, cache: Any) -> None:
            self.inner = cache

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        @property
        def offset(self) -> Any:
            offset = self.inner.offset
            return offset if isinstance(offset, int) else mx.broadcast_to(offset[:1], offset.shape)

    model = tiny_model(rope_theta=100.0)
    model.__class__ = OffByRow

    loaded = load(model)

    assert not loaded.spec.batched


def test_a_model_that_is_wrong_with_several_tokens_of_a_row_takes_them_one_by_one() -> None:
    class Crowded(llama.Model):  # type: ignore[misc]
        """Is another one where a step has more tokens than the probe's prompts are."""

        def __call__(self, inputs: mx.array, cache: Any = None, **kwargs: Any) -> mx.array:
            logits: mx.array = super().__call__(inputs, cache, **kwargs)
            return logits if inputs.shape[0] <= 2 else -logits

    model = tiny_model()
    model.__class__ = Crowded

    spec = load(model).spec

    assert spec.batched
    assert not spec.flat
    assert "in a flat step row 0 differs by" in spec.even
    assert ("", spec.even) in step_tokens(spec)
    assert load(tiny_model()).spec.flat


def test_a_model_that_agrees_with_no_cache_is_refused() -> None:
    from mlx_lm.models import llama
    from mlx_lm.models.cache import KVCache

    class Rewriting(llama.Model):  # type: ignore[misc]
        """Reads more of its cache than any but mlx-lm's own has."""

        def __call__(self, inputs: mx.array, cache: Any = None, **kwargs: Any) -> mx.array:
            if cache is not None and not isinstance(cache[0], KVCache):
                raise TypeError("it reads step")
            logits: mx.array = super().__call__(inputs, cache, **kwargs)
            return logits

    model = tiny_model()
    model.__class__ = Rewriting

    with pytest.raises(ProbeFailed, match="not even row by row: TypeError: it reads step"):
        load(model)


def test_on_a_gpu_rows_run_one_by_one_where_a_run_must_repeat_bit_for_bit() -> None:
    model = tiny_model()

    batched = {
        (cpu, reproducible): derive_spec(model, ModelOptions(reproducible=reproducible), cpu=cpu)
        for cpu in (True, False)
        for reproducible in (True, False)
    }

    alone = [asked for asked, spec in batched.items() if not spec.batched]
    assert alone == [(False, True)]
    assert not batched[False, True].flat


def test_a_model_is_probed_once_in_a_process_if_all_of_it_is_known() -> None:
    probes: list[str] = []

    def counted(true: Callable[..., Any]) -> Callable[..., Any]:
        def probe(*args: Any) -> Any:
            probes.append(true.__name__)
            return true(*args)

        return probe

    class Own(llama.Model):  # type: ignore[misc]
        """It may do what it likes."""

    def own() -> Any:
        model = tiny_model()
        model.__class__ = Own
        return model

    def probed(make: Callable[[], Any], **options: Any) -> list[str]:
        """What probes it takes to load a model."""
        probes.clear()
        load_model(lambda: (make(), PlainTokenizer()), ModelOptions(**options))
        return list(probes)

    both = ["derive_spec", "why_eager"]
    with (
        seeded(bug(loading, "derive_spec")(counted)),
        seeded(bug(loading, "why_eager")(counted)),
    ):
        assert probed(tiny_model) == both
        assert probed(tiny_model) == []
        assert probed(lambda: tiny_model(seed=1)) == both
        assert probed(lambda: tiny_model(rope_theta=100.0)) == both
        assert probed(tiny_model, kv_bits=8) == both
        assert probed(tiny_model) == []
        assert probed(own) == both
        assert probed(own) == both
