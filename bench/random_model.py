"""The random model that benchmarks share: a llama of a size that two cores can run."""

from typing import Any

__all__ = ["DESCRIPTION", "VOCABULARY", "endless_llama", "random_llama"]

VOCABULARY = 8192
DESCRIPTION = (
    "random llama, float32, 8 layers, hidden 512, 8 heads, 4 KV heads, head dim 64, "
    "feed-forward 1024, vocabulary 8,192"
)


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


def endless_llama(**shape: Any) -> tuple[Any, Any]:
    """(model, tokenizer) of another `shape`, that never ends a turn either."""
    from kvactors.core.testing.models import PlainTokenizer, tiny_model

    model = tiny_model(vocab_size=VOCABULARY, **shape)
    tokenizer = PlainTokenizer(VOCABULARY)
    tokenizer.eos_token_ids = set()
    return model, tokenizer
