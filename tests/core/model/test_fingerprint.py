"""The fingerprint: of one model it is the same, and another one's KV is never taken for its own."""

from typing import Any

import mlx.core as mx
from mlx_lm.tuner.utils import linear_to_lora_layers
from small_tokenizers import ASCII, Letters

from kvactors.core.model.fingerprint import tokenizer_identity
from kvactors.core.model.load import load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.testing.models import PlainTokenizer, tiny_model


def load(model: Any, **options: Any) -> Any:
    return load_model(lambda: (model, PlainTokenizer()), ModelOptions(**options))


def test_the_fingerprint_tells_weights_precision_and_template_apart() -> None:
    first = load(tiny_model(seed=0))

    assert load(tiny_model(seed=0)).fingerprint == first.fingerprint
    others = {
        load(tiny_model(seed=1)).fingerprint,
        load(tiny_model(seed=0), kv_bits=8).fingerprint,
        load(tiny_model(seed=0), kv_bits=None).fingerprint,
        load(tiny_model(seed=0), template_kwargs={"a": 1}).fingerprint,
        load(tiny_model(seed=0), name="another").fingerprint,
    }
    assert len(others | {first.fingerprint}) == 6


class Arguments:
    """Of a model, in a class that has no repr of its own."""

    def __init__(self, held: dict[str, Any]) -> None:
        self.__dict__.update(held)


def test_the_fingerprint_sees_what_plain_arguments_hold_and_not_where_they_are() -> None:
    def with_plain_arguments(theta: int) -> Any:
        model = tiny_model()
        model.args = Arguments({**vars(model.args), "rope": Arguments({"theta": theta})})
        return model

    first = load(with_plain_arguments(1))

    assert load(with_plain_arguments(1)).fingerprint == first.fingerprint
    assert load(with_plain_arguments(2)).fingerprint != first.fingerprint


def test_the_fingerprint_sees_the_scale_of_an_adapter() -> None:
    def adapted(scale: float) -> Any:
        model = tiny_model()
        mx.random.seed(0)
        linear_to_lora_layers(model, 2, {"rank": 4, "scale": scale, "dropout": 0.0})
        return model

    first = load(adapted(1.0))

    assert load(adapted(1.0)).fingerprint == first.fingerprint
    assert load(adapted(20.0)).fingerprint != first.fingerprint


def test_tokenizers_that_have_no_vocabulary_to_show_are_told_apart_by_what_they_do() -> None:
    first = tokenizer_identity(Letters(ASCII))

    assert tokenizer_identity(Letters(ASCII)) == first
    assert tokenizer_identity(Letters(ASCII[:1] + ASCII[:0:-1])) != first
    assert tokenizer_identity(Letters(ASCII[:-1])) != first
