"""Test doubles for models and tokenizers, public because users need them too.

`tiny_llama` builds a random model of mlx-lm's own class; `snap_to_grid` makes its sums exact
in any order, so that tests may compare bit for bit. `Faulty`
wraps a model so that it fails, delays or lies when told to. GPU thread, but for `Faulty.arm`.
"""

import functools
import importlib
import threading
from collections.abc import Callable
from typing import Any, ClassVar
from weakref import WeakSet

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

__all__ = [
    "Faulty",
    "PlainTokenizer",
    "endless_grid",
    "grid",
    "snap_to_grid",
    "tiny_llama",
    "tiny_model",
]


class PlainTokenizer:
    """Characters as tokens: ids are code points modulo the vocabulary. Its chat template adds
    nothing: a turn is its text."""

    has_chat_template = True
    chat_template = None

    def __init__(self, vocab_size: int = 128, eos_token_id: int = 0) -> None:
        self.vocab_size = vocab_size
        self.eos_token_id = eos_token_id
        self.eos_token_ids = {eos_token_id}

    def encode(
        self,
        text: str,
        add_special_tokens: bool = False,  # noqa: FBT001, FBT002 - transformers' signature
    ) -> list[int]:
        """One id per character."""
        return [ord(character) % self.vocab_size for character in text]

    def decode(self, tokens: list[int]) -> str:
        """One character per id."""
        return "".join(chr(token) for token in tokens)

    def apply_chat_template(self, messages: list[dict[str, str]], **_options: Any) -> str:
        """What was said, without anything between."""
        return "".join(message["content"] for message in messages)

    def get_vocab(self) -> dict[str, int]:
        """Every character with its id."""
        return {chr(token): token for token in range(self.vocab_size)}


def tiny_model(
    kind: str = "llama",
    *,
    seed: int = 0,
    vocab_size: int = 128,
    dtype: mx.Dtype = mx.float32,
    **changes: Any,
) -> Any:
    """A random model of mlx-lm's own class `kind` (llama, qwen2, qwen3), with weights by `seed` for
    `vocab_size` tokens, of this `dtype`, evaluated.

    Attention weights are large enough for the context to decide the output.
    """
    module = importlib.import_module(f"mlx_lm.models.{kind}")
    config: dict[str, Any] = {
        "model_type": kind,
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocab_size,
        "max_position_embeddings": 8192,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
    }
    config.update(changes)
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(config))
    for layer in model.layers:
        attention = layer.self_attn
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            projection = getattr(attention, name)
            projection.weight = projection.weight * 3
    model.set_dtype(dtype)
    mx.eval(model.parameters())
    return model


def tiny_llama(**changes: Any) -> Callable[[], tuple[Any, PlainTokenizer]]:
    """A callable for `AgentSystem(model=...)` that builds a random llama."""
    vocab_size = changes.get("vocab_size", 128)

    def build() -> tuple[Any, PlainTokenizer]:
        return tiny_model(**changes), PlainTokenizer(vocab_size)

    build.__name__ = "tiny_llama"
    return build


def grid() -> tuple[Any, PlainTokenizer]:
    """For `AgentSystem(model=...)`: a random llama whose sums are exact in any order."""
    return snap_to_grid(tiny_model()), PlainTokenizer()


def endless_grid() -> tuple[Any, PlainTokenizer]:
    """The same, of which no answer ends before it is cut or cancelled."""
    model, tokenizer = grid()
    tokenizer.eos_token_ids = set()
    return model, tokenizer


def snap_to_grid(model: Any, inputs: float = 256, weights: float = 128) -> Any:
    """Make the sums of every linear layer exact in float32, in any order; returns the model.

    Weights are rounded to 1/128 and clipped to 1, inputs are rounded to 1/256 and clipped to
    8 on every call: products then fit into float32's 24 bits even when hundreds are summed.
    Whatever has a matrix of weights counts: experts and their gates, latent projections,
    convolutions, and the embedding as an output layer.
    """
    for _, module in model.named_modules():
        if _is_linear(module):
            module.weight = mx.round(mx.clip(module.weight, -1, 1) * weights) / weights
            if "bias" in module:
                module.bias = mx.round(module.bias * weights) / weights
            kind: Any = type(module)
            module.__class__ = _on_grid(kind, inputs)
    mx.eval(model.parameters())
    return model


def _is_linear(module: Any) -> bool:
    """Whether a module multiplies by a matrix of floats. Norms of each head have one too."""
    weight = module.get("weight")
    if not isinstance(weight, mx.array) or "Norm" in type(module).__name__:
        return False
    return weight.ndim > 1 and mx.issubdtype(weight.dtype, mx.floating)


@functools.cache
def _on_grid(kind: Any, grid: float) -> Any:
    """The same kind of layer, with its inputs on a grid."""
    method = "as_linear" if issubclass(kind, nn.Embedding) else "__call__"

    def snapped(self: Any, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        rounded = mx.round(mx.clip(x, -8, 8) * grid) / grid
        out: mx.array = getattr(kind, method)(self, rounded, *args, **kwargs)
        return out

    # As much its own maker's as the layer is: it is traced where that is.
    members = {method: snapped, "__module__": kind.__module__}
    return type(f"Grid{kind.__name__}", (kind,), members)


class Faulty(nn.Module):  # type: ignore[misc]
    """A model that misbehaves on cue: raises on a token or at a step, holds a step, or shifts
    logits.

    `arm` and the events may be used from any thread.
    """

    _gates: ClassVar[WeakSet[threading.Event]] = WeakSet()

    @classmethod
    def open_all(cls) -> None:
        """Let go on what any of them holds: a test that failed leaves nobody to do it."""
        for gate in list(cls._gates):
            gate.set()

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.args = model.args
        self._poison: int | None = None
        self._steps_left: int | None = None
        self._error: BaseException = RuntimeError("poisoned token")
        self._lie = 0.0
        self._gate: threading.Event | None = None
        self.reached = threading.Event()

    def make_cache(self) -> list[Any]:
        """The wrapped model's own caches."""
        caches: list[Any] = make_prompt_cache(self.model)
        return caches

    def arm(
        self,
        *,
        poison: int | None = None,
        step: int | None = None,
        error: BaseException | None = None,
        hold: threading.Event | None = None,
        lie: float = 0.0,
    ) -> None:
        """Raise `error` whenever `poison` is fed, or once, in the `step`-th call from now (from
        0); wait for `hold`; add `lie` to every logit."""
        self._poison, self._gate, self._lie = poison, hold, lie
        if hold is not None:
            self._gates.add(hold)
        self._steps_left = step
        self._error = error or RuntimeError(f"poisoned token {poison}")
        self.reached.clear()

    def __call__(self, inputs: mx.array, cache: Any = None, **kwargs: Any) -> mx.array:
        if self._gate is not None:
            self.reached.set()
            self._gate.wait()
        if self._poison is not None and bool((inputs == self._poison).any().item()):
            raise self._error
        if self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left < 0:
                self._steps_left = None
                raise self._error
        logits: mx.array = self.model(inputs, cache=cache, **kwargs)
        return logits + self._lie
