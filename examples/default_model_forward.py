"""The default model's training forward: mlx-lm's llama, with rounding simulated.

The cache stores keys and values at 4 bits and the engine may run in bfloat16. Both are
imitated here in float32 with straight-through gradients, so that the weights learn to
stand the error. Without either, the result equals mlx-lm's own forward (`difference`).
"""

import math

import mlx.core as mx
from default_model_exp import silu, softmax
from default_model_init import CONFIG, THETA, Shape, shape_of
from mlx_lm.models.llama import Model, ModelArgs

__all__ = ["Weights", "difference", "hidden_states", "mlx_lm_model", "probe_loss", "rounded"]

Weights = dict[str, mx.array]

# Scores of later keys are masked anyway, so queries go in blocks that skip them.
BLOCK = 256


def rounded(x: mx.array, on: bool) -> mx.array:
    """x as bfloat16 would hold it; the gradient passes as if nothing happened."""
    if not on:
        return x
    return x + mx.stop_gradient(x.astype(mx.bfloat16).astype(x.dtype) - x)


def quantized(x: mx.array, on: bool) -> mx.array:
    """x as the cache gives it back: 4 bits per value, one scale and bias per head."""
    if not on:
        return x
    group = x.shape[-1]
    back = mx.dequantize(*mx.quantize(mx.stop_gradient(x), group, 4), group, 4)
    return x + mx.stop_gradient(back - x)


def hidden_states(
    weights: Weights, tokens: mx.array, q4: bool, bf16: bool
) -> tuple[mx.array, list[mx.array]]:
    """Final normed states, (batch, tokens, width), and the stream after each layer."""
    h = rounded(weights["model.embed_tokens.weight"][tokens], bf16)
    after: list[mx.array] = []
    shape = shape_of(weights)
    for layer in range(shape.layers):
        name = f"model.layers.{layer}."
        x = rounded(_norm(weights, name + "input_layernorm", h), bf16)
        h = rounded(h + _attention(weights, name + "self_attn.", x, shape, q4, bf16), bf16)
        x = rounded(_norm(weights, name + "post_attention_layernorm", h), bf16)
        h = rounded(h + _feed_forward(weights, name + "mlp.", x, bf16), bf16)
        after.append(h)
    return rounded(_norm(weights, "model.norm", h), bf16), after


def probe_loss(
    weights: Weights, name: str, stream: mx.array, labels: mx.array, counts: mx.array
) -> mx.array:
    """How badly a linear probe reads `labels` from the stream, where `counts` is 1."""
    logits = (stream * weights[f"probe.{name}.weight"]).sum(axis=-1)
    logits = logits + weights[f"probe.{name}.bias"]
    losses = mx.logaddexp(logits, mx.array(0.0)) - logits * labels
    return (losses * counts).sum() / mx.maximum(counts.sum(), 1.0)


def _norm(weights: Weights, name: str, x: mx.array) -> mx.array:
    return mx.fast.rms_norm(x, weights[name + ".weight"], CONFIG["rms_norm_eps"])


def _linear(weights: Weights, name: str, x: mx.array) -> mx.array:
    bias = weights.get(name + ".bias")
    y = x @ weights[name + ".weight"].T
    return y if bias is None else y + bias


def _feed_forward(weights: Weights, name: str, x: mx.array, bf16: bool) -> mx.array:
    gate = rounded(_linear(weights, name + "gate_proj", x), bf16)
    up = rounded(_linear(weights, name + "up_proj", x), bf16)
    inner = rounded(rounded(silu(gate), bf16) * up, bf16)
    return rounded(_linear(weights, name + "down_proj", inner), bf16)


def _attention(
    weights: Weights, name: str, x: mx.array, shape: Shape, q4: bool, bf16: bool
) -> mx.array:
    split = (*x.shape[:2], shape.heads, shape.head_dim)
    queries, keys, values = (
        rounded(_linear(weights, f"{name}{part}_proj", x), bf16).reshape(split).swapaxes(1, 2)
        for part in "qkv"
    )
    queries = rounded(_rotated(queries), bf16)
    keys = quantized(rounded(_rotated(keys), bf16), q4)
    values = quantized(values, q4)
    out = rounded(_attend(queries * shape.head_dim**-0.5, keys, values), bf16)
    out = out.swapaxes(1, 2).reshape(x.shape)
    return rounded(_linear(weights, name + "o_proj", out), bf16)


def _rotated(x: mx.array) -> mx.array:
    half = x.shape[-1] // 2
    steps = mx.exp(mx.arange(half, dtype=mx.float32) * (-math.log(THETA) / half))
    angle = mx.arange(x.shape[2], dtype=mx.float32)[:, None] * steps
    cos, sin = mx.cos(angle), mx.sin(angle)
    low, high = x[..., :half], x[..., half:]
    return mx.concatenate([low * cos - high * sin, low * sin + high * cos], axis=-1)


def _attend(queries: mx.array, keys: mx.array, values: mx.array) -> mx.array:
    length = queries.shape[2]
    parts = []
    for start in range(0, length, BLOCK):
        end = min(start + BLOCK, length)
        scores = queries[:, :, start:end] @ keys[:, :, :end].swapaxes(2, 3)
        late = mx.arange(end) > mx.arange(start, end)[:, None]
        scores = scores + mx.where(late, mx.array(-1e9), mx.array(0.0))
        parts.append(softmax(scores) @ values[:, :, :end])
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=2)


def mlx_lm_model(weights: Weights) -> Model:
    """The same weights in mlx-lm's own class."""
    model = Model(ModelArgs.from_dict(shape_of(weights).config))
    model.load_weights(list(weights.items()), strict=True)
    return model


def difference(weights: Weights) -> float:
    """Largest difference of a logit between this forward and mlx-lm's."""
    tokens = (mx.arange(2 * 300).reshape(2, 300) * 7919) % CONFIG["vocab_size"]
    states, _ = hidden_states(weights, tokens, False, False)
    ours = states @ weights["model.embed_tokens.weight"].T
    return float(mx.abs(ours - mlx_lm_model(weights)(tokens)).max())
