"""The random models that benchmarks share: llamas of a size that two cores can run."""

import time
from collections.abc import Callable
from typing import Any

__all__ = [
    "DESCRIPTION",
    "SMALL",
    "VOCABULARY",
    "endless_llama",
    "paced_llama",
    "random_llama",
    "small_llama",
    "unnamed",
]

VOCABULARY = 8192
DESCRIPTION = (
    "random llama, float32, 8 layers, hidden 512, 8 heads, 4 KV heads, head dim 64, "
    "feed-forward 1024, vocabulary 8,192"
)
SMALL = (
    "random llama, float32, 2 layers, hidden 64, 2 heads, 1 KV head, head dim 64, "
    "feed-forward 128, vocabulary 8,192"
)


def unnamed(*, quick: bool) -> tuple[Callable[[], Any], str]:
    """What is measured where no model is named, and its description: a smaller one for a `quick`
    run, which shows no more than that it runs."""
    return (small_llama, SMALL) if quick else (random_llama, DESCRIPTION)


def random_llama() -> tuple[Any, Any]:
    """(model, tokenizer) for `AgentSystem(model=...)`; it never ends a turn by itself."""
    return endless_llama(
        num_hidden_layers=8,
        hidden_size=512,
        intermediate_size=1024,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=32_768,
    )


def small_llama() -> tuple[Any, Any]:
    """The same in small: it is loaded, and its kernels are measured, in a part of the time."""
    return endless_llama(
        hidden_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=32_768,
    )


def endless_llama(**shape: Any) -> tuple[Any, Any]:
    """(model, tokenizer) of another `shape`, that never ends a turn either."""
    from kvactors.core.testing.models import PlainTokenizer, tiny_model

    model = tiny_model(vocab_size=VOCABULARY, **shape)
    tokenizer = PlainTokenizer(VOCABULARY)
    tokenizer.eos_token_ids = set()
    return model, tokenizer


def paced_llama(seconds: float, **shape: Any) -> tuple[Any, Any]:
    """The same, each of whose forwards takes so many `seconds` whatever its rows and tokens, as
    those of a GPU do that reads all weights for them: a smaller one than that leaves it idle."""
    import mlx.core as mx
    import mlx.nn as nn
    from mlx_lm.models.cache import make_prompt_cache

    model, tokenizer = endless_llama(**shape)

    class Paced(nn.Module):  # type: ignore[misc]
        """It evaluates what it computes, so that no step is replayed without it."""

        def __init__(self) -> None:
            super().__init__()
            self.model, self.args = model, model.args

        def make_cache(self) -> list[Any]:
            caches: list[Any] = make_prompt_cache(self.model)
            return caches

        def __call__(self, inputs: mx.array, **kwargs: Any) -> mx.array:
            end = time.perf_counter() + seconds
            logits: mx.array = model(inputs, **kwargs)
            mx.eval(logits)
            time.sleep(max(0, end - time.perf_counter()))
            return logits

    return Paced(), tokenizer
