"""A small llama that calls the op, to be exported and to be run. Its names are those of the files
of such models. On the thread that runs it."""

import json
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from kvactors.core.attention.export.op import update_and_attend
from kvactors.core.cache.family.config import ModelFacts
from kvactors.core.errors import InvalidConfig

__all__ = ["Llama", "LlamaConfig", "export_llama", "load_llama"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """What a model's `config.json` says, as far as it matters here."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float = 10_000.0
    attention_bias: bool = False
    tie_word_embeddings: bool = False

    @classmethod
    def read(cls, config: dict[str, Any]) -> "LlamaConfig":
        """Of a whole `config.json`. Raises InvalidConfig for what is computed otherwise, and for
        what is lacking."""
        rope = config.get("rope_parameters") or {}
        _check_computed(config, rope)
        said = {**config, **rope}
        names = [field.name for field in fields(cls)]
        known = {name: said[name] for name in names if said.get(name) is not None}
        if heads := known.get("num_attention_heads"):
            known.setdefault("num_key_value_heads", heads)
            known.setdefault("head_dim", known.get("hidden_size", 0) // heads)
        needed = [field.name for field in fields(cls) if field.default is MISSING]
        if lacking := [name for name in needed if name not in known]:
            raise InvalidConfig(f"the config of this llama lacks {', '.join(lacking)}")
        return cls(**known)

    @property
    def facts(self) -> ModelFacts:
        """What its cache is sized by."""
        return ModelFacts(self.num_hidden_layers, self.num_key_value_heads, self.head_dim)


def _check_computed(config: dict[str, Any], rope: dict[str, Any]) -> None:
    """Raise InvalidConfig where a model of this `config`, its positions by `rope`, is computed in
    another way than here."""
    same = {
        "model_type": config.get("model_type") == "llama",
        "hidden_act": config.get("hidden_act") in (None, "silu"),
        "mlp_bias": not config.get("mlp_bias"),
        "rope_scaling": not config.get("rope_scaling"),
        "rope_parameters": rope.get("rope_type", "default") == "default",
    }
    if other := [f"{name}={config.get(name)!r}" for name, is_so in same.items() if not is_so]:
        raise InvalidConfig(f"this llama computes in another way than {', '.join(other)}")


class Attention(nn.Module):  # type: ignore[misc]
    """Of layer `layer_id`, as `config` says: its keys are where the op puts them."""

    def __init__(self, config: LlamaConfig, layer_id: int) -> None:
        super().__init__()
        self.layer_id, self.head_dim = layer_id, config.head_dim
        width, bias = config.hidden_size, config.attention_bias
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(width, queries, bias=bias)
        self.k_proj = nn.Linear(width, keys, bias=bias)
        self.v_proj = nn.Linear(width, keys, bias=bias)
        self.o_proj = nn.Linear(queries, width, bias=bias)

    def forward(self, x: Tensor, position: Tensor, turn: Tensor) -> Tensor:
        """`x` [T, hidden] of tokens at `position` [T], their queries and keys turned by the angles
        `turn` [T, dim / 2]; the same shape again."""
        q, k, v = (self._heads(proj(x)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        scale = self.head_dim**-0.5
        out = update_and_attend(
            _turned(q, turn), _turned(k, turn), v, position, self.layer_id, scale, x.dtype
        )
        return self.o_proj(out[0].transpose(0, 1).flatten(1))

    def _heads(self, x: Tensor) -> Tensor:
        """[T, heads * dim] as [1, heads, T, dim]."""
        return x.unflatten(1, (-1, self.head_dim)).transpose(0, 1)[None]


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    """[1, heads, T, dim], each half of a head turned into the other by the angles [T, dim / 2]."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = turn.cos().to(x.dtype), turn.sin().to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class MLP(nn.Module):  # type: ignore[misc]
    """Of the sizes in `config`."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden], the same shape again."""
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):  # type: ignore[misc]
    """Layer `layer_id`, as `config` says."""

    def __init__(self, config: LlamaConfig, layer_id: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer_id)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, position: Tensor, turn: Tensor) -> Tensor:
        """`x` [T, hidden], the same shape again; `position` and `turn` as for its attention."""
        x = x + self.self_attn(self.input_layernorm(x), position, turn)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):  # type: ignore[misc]
    """All layers of a llama, as `config` says."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, n) for n in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        turns = (config.rope_theta**-exponents).float()
        self.register_buffer("turns", turns, persistent=False)

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        """Hidden states [T, hidden] of tokens [T] at `position` [T]."""
        x, turn = self.embed_tokens(tokens), position[:, None] * self.turns
        for layer in self.layers:
            x = layer(x, position, turn)
        return self.norm(x)


class Llama(nn.Module):  # type: ignore[misc]
    """As `config` says, with weights that are still to be loaded."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        """Logits [T, vocab] of tokens [T], each at its `position` [T]."""
        x = self.model(tokens, position)
        if self.config.tie_word_embeddings:
            return linear(x, self.model.embed_tokens.weight)
        return self.lm_head(x)


def load_llama(folder: Path) -> Llama:
    """Of a folder with `config.json` and `model.safetensors`, in float32. Raises InvalidConfig."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model = Llama(LlamaConfig.read(config))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    model.eval()
    return model


def export_llama(model: Llama, most_tokens: int = 512) -> torch.export.ExportedProgram:
    """Its graph, for steps of 1 to `most_tokens`: a node of the op for each layer. A context may be
    longer than that; it comes in more steps then."""
    tokens = torch.export.Dim("tokens", min=1, max=most_tokens)
    # Two tensors: of one, given twice, the graph would have one input.
    some = torch.arange(3), torch.arange(3)
    shapes = {"tokens": {0: tokens}, "position": {0: tokens}}
    with torch.no_grad():
        return torch.export.export(model, some, dynamic_shapes=shapes)
