"""Loading a draft model: whether it fits the model that it drafts for. GPU thread."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlx_lm.models.cache import KVCache, make_prompt_cache

from kvactors.core.conversation.token_text import vocabulary
from kvactors.core.errors import InvalidConfig, UnsupportedLayer
from kvactors.core.model.load import LoadedModel
from kvactors.core.model.opening import open_model, ready
from kvactors.core.model.options import DRAFT_MODEL, ModelOptions

__all__ = ["with_draft"]

logger = logging.getLogger(__name__)

Source = str | Path | Callable[[], Any]


def with_draft(loaded: LoadedModel, source: Source, options: ModelOptions) -> LoadedModel:
    """The `loaded` model with the draft model of this `source`. `options` say in what both compute.
    Raises ModelError, and InvalidConfig where their tokens are not the same."""
    ours = source == "default"
    name = "draft_model" if ours else getattr(source, "__name__", None)
    name, model, tokenizer, _ = open_model(
        DRAFT_MODEL if ours else source, replace(options, name=name)
    )
    _check_tokens(name, tokenizer, loaded)
    _check_vocabulary(name, model, loaded)
    _check_caches(name, model)
    ready(model, options.dtype)
    logger.debug("%s drafts for %s", name, loaded.name)
    return replace(loaded, draft=model)


def _check_tokens(name: str, tokenizer: Any, loaded: LoadedModel) -> None:
    """Raise InvalidConfig where a token of one is another one of the other, or nobody can tell."""
    theirs, ours = _tokens(name, tokenizer), _tokens(loaded.name, loaded.chat.tokenizer)
    if theirs == ours:
        return
    first = min(n for n in theirs.keys() | ours.keys() if theirs.get(n) != ours.get(n))
    raise InvalidConfig(
        f"the draft model {name!r} has another tokenizer than {loaded.name!r}: token {first} is "
        f"{_shown(theirs.get(first))} there and {_shown(ours.get(first))} here. A draft model "
        "needs the same tokens; usually a smaller model of the same family has them"
    )


def _check_vocabulary(name: str, model: Any, loaded: LoadedModel) -> None:
    """Raise InvalidConfig where a token of the model lies beyond the draft model's embedding, which
    would be read there without a word."""
    import mlx.core as mx

    rows = model(mx.array([[1]]), cache=make_prompt_cache(model)).shape[-1]
    if rows < loaded.spec.vocab_size:
        raise InvalidConfig(
            f"the draft model {name!r} has {rows} rows of vocabulary, {loaded.name!r} draws from "
            f"{loaded.spec.vocab_size}: a draft model needs as many; choose another one"
        )


def _tokens(name: str, tokenizer: Any) -> Mapping[int, str]:
    known = vocabulary(tokenizer)
    if not known:
        raise InvalidConfig(
            f"the tokenizer of {name!r} has no get_vocab: a draft model needs one on both sides, "
            "which tells whether their tokens are the same"
        )
    return {token: text for text, token in known.items()}


def _shown(token: str | None) -> str:
    return "none" if token is None else repr(token)


def _check_caches(name: str, model: Any) -> None:
    """Raise UnsupportedLayer where a layer cannot forget what was drafted in vain."""
    for layer, cache in enumerate(make_prompt_cache(model)):
        if type(cache) is not KVCache:
            raise UnsupportedLayer(
                f"layer {layer} of the draft model {name!r} has a {type(cache).__name__}: drafts "
                "that are wrong are cut off again, which needs full attention in every layer"
            )
