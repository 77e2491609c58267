"""Loading a model through mlx-lm and learning what the engine must know of it.

No table of model names: the cache spec comes from the model's own cache objects and one
probing forward, and what cannot be supported is refused here with the reason. GPU thread.
"""

import json
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import mlx.core as mx
import mlx.nn as nn

from kvactors.core.arena.compiled.unfused import replays
from kvactors.core.arena.wire import FORMAT_VERSION, layout
from kvactors.core.attention import linear_cpu, seam
from kvactors.core.attention.policy import AttentionPolicy, check_attention
from kvactors.core.cache.spec import KVForm, ModelCacheSpec
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.errors import InvalidConfig
from kvactors.core.model import fingerprint
from kvactors.core.model.batch_probe import choose_plan
from kvactors.core.model.calibrate import measure_launch_tokens, measure_parts, measure_threshold
from kvactors.core.model.layer_kinds import derive_layers
from kvactors.core.model.opening import open_model, ready
from kvactors.core.model.options import ModelOptions
from kvactors.core.model.trace_probe import classes_of, unknown_class, why_eager
from kvactors.core.quant.device import on_cpu

__all__ = [
    "CPU_CHUNK",
    "LoadedModel",
    "choose_policy",
    "load_model",
    "probed",
    "stated_positions",
]

_T = TypeVar("_T")

logger = logging.getLogger(__name__)

# Of a model: of its weights as they came first, as they compute, and what was asked for.
_HASHES = "_kvactors_hashes"

DEFAULT_CONTEXT = 32_768

# What families call the positions that they were made for.
_POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "model_max_length",
    "max_sequence_length",
    "max_context_length",
    "max_seq_len",
)

# Of a GPU what [write-up, 3.4] has.
CPU_CHUNK, GPU_CHUNK = 512, 4096


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that passed its probes, and everything derived from it. `floats` is the same model
    for agents whose turns begin with at most `float_tokens` tokens: their KV is kept in float.
    `eager` says why its decode steps are not traced; empty, they may be. `draft` is a smaller model
    of mlx-lm's, with the same tokens, if one drafts."""

    name: str
    model: Any
    chat: ChatFormat
    form: KVForm
    policy: AttentionPolicy
    fingerprint: str
    tokenizer_id: str
    layout: str
    eager: str = ""
    float_tokens: int = 0
    floats: "LoadedModel | None" = None
    draft: Any = None

    @property
    def forms(self) -> tuple["LoadedModel", ...]:
        """The forms that KV is kept in: as `kv_bits` says and, if there is one, in float."""
        return (self,) if self.floats is None else (self, self.floats)

    @property
    def spec(self) -> ModelCacheSpec:
        """What its layers cache, in this form."""
        return self.form.spec

    @property
    def fixed_chunks(self) -> bool:
        """Whether chunks end where they always do, and are not shortened: to repeat bit for bit."""
        return self.policy.reproducible or self.spec.fixed_chunks

    @property
    def longest_chunk(self) -> int:
        """Tokens of a prefill chunk from which longer ones are no faster on this device, and only
        take more memory (bench/LOG.md)."""
        return CPU_CHUNK if on_cpu() else GPU_CHUNK

    def form_of(self, tokens: int) -> KVForm:
        """Which of `forms` a turn is run in that begins with so many tokens, its prompt among
        them. It depends on the ledger alone, so that an agent's KV is the same whether it stayed
        in memory, was restored or is computed again."""
        short = self.floats is not None and tokens <= self.float_tokens
        return self.forms[short].form


def _made_ready(model: Any, dtype: str) -> str:
    """The hash of a model's weights as they came, after which they are as they compute: who gives
    the same model again gives what was cast then."""
    came = fingerprint.weights_hash(model)
    first, last, then = getattr(model, _HASHES, "  ").split(" ")
    first = first if (came, dtype) == (last, then) else came
    computes = fingerprint.weights_hash(model) if ready(model, dtype) else came
    setattr(model, _HASHES, f"{first} {computes} {dtype}")
    return first


def load_model(source: str | Path | Callable[[], Any], options: ModelOptions) -> LoadedModel:
    """Load, cast, derive the spec and identify. Raises ModelError or InvalidConfig."""
    name, model, tokenizer, config = open_model(source, options)
    mx.eval(model.parameters())
    weights = _made_ready(model, options.dtype)
    seam.install()
    linear_cpu.install()
    known = _probed_as(model, weights, options, config)
    spec = _once(known, partial(derive_spec, model, options, config))
    chat = ChatFormat(tokenizer, options.template_kwargs)
    if not chat.has_template:
        logger.warning(
            "%s has no chat template: turns are separated by lines such as 'User:', 'Assistant:'; "
            'Sampling(stop=("\\n\\nUser:",)) ends an answer there',
            name,
        )
    tokenizer_id = fingerprint.tokenizer_identity(tokenizer)
    described = layout(spec)
    floats = spec.in_float()
    float_tokens = 0 if floats == spec else options.float_tokens
    adapters = fingerprint.adapter_numbers(model)
    identity = fingerprint.fingerprint(
        format=FORMAT_VERSION,
        name=options.name,
        architecture=_architecture(model),
        weights=weights,
        layout=described,
        tokenizer=tokenizer_id,
        template=str(getattr(tokenizer, "chat_template", None)),
        template_kwargs=options.template_kwargs,
        **({"float_tokens": float_tokens} if float_tokens else {}),
        **({"adapters": adapters} if adapters else {}),
    )
    policy = choose_policy(spec, options)
    eager = _once(known, partial(why_eager, model, spec, policy), spec, policy)
    loaded = LoadedModel(
        name, model, chat, KVForm(0, spec), policy, identity, tokenizer_id, described, eager
    )
    if not float_tokens:
        return loaded
    policy = choose_policy(floats, options)
    eager = _once(known, partial(why_eager, model, floats, policy), floats, policy)
    form = KVForm(1, floats)
    in_float = replace(loaded, form=form, policy=policy, layout=layout(floats), eager=eager)
    return replace(loaded, float_tokens=float_tokens, floats=in_float)


probed: dict[Hashable, Any] = {}
"""What probes found in this process: an engine that begins again, after a failure or with a model
that was there before, need not wait for them."""


def _probed_as(
    model: Any, weights: str, options: ModelOptions, config: Mapping[str, Any]
) -> Hashable:
    """All that the probes of a model depend on; None where it has a class that is neither MLX's
    nor mlx-lm's, which may do what it likes."""
    if unknown_class(model):
        return None
    says = json.dumps([dict(config), fingerprint.adapter_numbers(model)], default=repr)
    runs = str(mx.default_device()), replays()
    return weights, _architecture(model), classes_of(model), repr(options), says, runs


def _once(known: Hashable, probe: Callable[[], _T], *of: Hashable) -> _T:
    """What a `probe` finds, or has found of what is known as this, and `of` the rest."""
    if known is None:
        return probe()
    key = known, of
    if key not in probed:
        probed[key] = probe()
    found: _T = probed[key]
    return found


def derive_spec(
    model: Any,
    options: ModelOptions,
    config: Mapping[str, Any] = MappingProxyType({}),
    *,
    cpu: bool | None = None,
) -> ModelCacheSpec:
    """The cache spec of a `model`, from its own caches after a short forward, and how it is run
    under `options`. `config`: what its `config.json` says. `cpu`: where MLX computes, unless
    another device is meant."""
    layers, nesting = derive_layers(model, options)
    context = _context(stated_positions(model, config), options)
    spec = ModelCacheSpec(layers, _vocabulary(model), context, nesting)
    plan = choose_plan(model, spec, exact=options.attention == "packed" or options.reproducible)
    if options.reproducible and not (on_cpu() if cpu is None else cpu):
        # A GPU has other kernels for other numbers of rows, and of keys: they sum in other orders.
        return replace(plan, batched=False)
    return plan


def _vocabulary(model: Any) -> int:
    """How many ids a model may be fed: rows of the embedding of its tokens, beside which it may
    have others, of positions and the like."""
    tables = [
        int(module.weight.shape[0])
        for _, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.QuantizedEmbedding)
    ]
    said = _said(("vocab_size",), _arguments(model))
    if said in tables:
        return int(said)
    drawn = int(model(mx.array([[1]])).shape[-1])
    return drawn if drawn in tables or not tables else min(drawn, max(tables))


def _context(longest: int | None, options: ModelOptions) -> int:
    if options.context and longest and options.context > longest:
        raise InvalidConfig(
            f"context={options.context} exceeds the model's {longest} positions: it can only "
            "lower them"
        )
    return options.context or longest or DEFAULT_CONTEXT


def stated_positions(model: Any, config: Mapping[str, Any] = MappingProxyType({})) -> int | None:
    """How many positions a model was made for, if its `config.json` or its arguments say so."""
    return _said(_POSITIONS, config, _arguments(model))


def stated_heads(model: Any) -> int | None:
    """How many heads of queries a model has in a layer, if its arguments say so."""
    return _said(("num_attention_heads",), _arguments(model))


def _arguments(model: Any) -> Mapping[str, Any]:
    return getattr(getattr(model, "args", None), "__dict__", {})


def _said(names: Sequence[str], *described: Mapping[str, Any]) -> int | None:
    """The first of these numbers that one who described a model, or its text model, says."""
    for whole in described:
        text = whole.get("text_config")
        for said in (whole, text if isinstance(text, dict) else getattr(text, "__dict__", {})):
            for name in names:
                if said.get(name):
                    return int(said[name])
    return None


def _architecture(model: Any) -> str:
    arguments = fingerprint.described(getattr(model, "args", None))
    return f"{type(model).__module__}.{type(model).__name__} {arguments}"


def choose_policy(
    spec: ModelCacheSpec,
    options: ModelOptions,
    *,
    cpu: bool | None = None,
    faster_in_parts: Callable[[], bool] = measure_parts,
) -> AttentionPolicy:
    """How layers of this `spec` are attended: as `options` say, and by what is measured. `cpu`:
    where MLX computes, unless another device is meant; `faster_in_parts` is asked on a CPU."""
    cpu = on_cpu() if cpu is None else cpu
    mode = check_attention(options.attention)
    packable = [layer for layer in spec.layers if layer.kind != "recurrent" and not layer.plain]
    if mode != "auto" or options.reproducible:
        return AttentionPolicy(mode, reproducible=options.reproducible)
    parts = cpu and faster_in_parts()
    logger.debug("few rows are multiplied %s", "with parts of weights" if parts else "whole")
    if not packable:
        return AttentionPolicy(parts=parts)
    threshold = measure_threshold(packable[0], cpu=cpu)
    launch = measure_launch_tokens(packable[0], cpu=cpu)
    logger.debug("packed up to %d query rows per KV head, a slab costs %d", threshold, launch)
    return AttentionPolicy(threshold=threshold, launch_tokens=launch, unpack=cpu, parts=parts)
