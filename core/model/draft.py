"""Loading a draft model: whether it fits the model that it drafts for. GPU thread."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlx_lm.models.cache import KVCache, make_prompt_cache

from kvactors.core.errors import InvalidConfig, UnsupportedLayer
from kvactors.core.model.load import LoadedModel
from kvactors.core.model.opening import open_model, ready
from kvactors.core.model.options import DEFAULT_MODEL, DRAFT_MODEL, ModelOptions

__all__ = ["with_draft"]

logger = logging.getLogger(__name__)

Source = str | Path | Callable[[], Any]


def with_draft(
    loaded: LoadedModel, source: Source | None, target: Source, options: ModelOptions
) -> LoadedModel:
    """The `loaded` model of `target` with the draft model of this `source`; without one, with that
    of the default model, if `target` is that. `options` say in what both compute. Raises
    ModelError, and InvalidConfig where their tokens are not the same."""
    if source is None and not _is_default(target):
        return loaded
    ours = source is None or source == "default"
    name = "draft_model" if ours else getattr(source, "__name__", None)
    place = DRAFT_MODEL if ours or source is None else source
    name, model, tokenizer = open_model(place, replace(options, name=name))
    _check_tokens(name, tokenizer, loaded)
    _check_caches(name, model)
    ready(model, options.dtype)
    logger.debug("%s drafts for %s", name, loaded.name)
    return replace(loaded, draft=model)


def _is_default(target: Source) -> bool:
    return not callable(target) and (target == "default" or Path(target) == DEFAULT_MODEL)


def _check_tokens(name: str, tokenizer: Any, loaded: LoadedModel) -> None:
    """Raise InvalidConfig where a token of one is another one of the other."""
    theirs, ours = _tokens(tokenizer), _tokens(loaded.chat.tokenizer)
    if theirs == ours:
        return
    first = min(n for n in theirs.keys() | ours.keys() if theirs.get(n) != ours.get(n))
    raise InvalidConfig(
        f"the draft model {name!r} has another tokenizer than {loaded.name!r}: token {first} is "
        f"{_shown(theirs.get(first))} there and {_shown(ours.get(first))} here. A draft model "
        "needs the same tokens; usually a smaller model of the same family has them"
    )


def _tokens(tokenizer: Any) -> Mapping[int, str]:
    return {token: text for text, token in tokenizer.get_vocab().items()}


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
