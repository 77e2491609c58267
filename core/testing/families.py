"""Tiny random models of mlx-lm's own classes, in true geometry. Imports MLX."""

import importlib
import inspect
import pkgutil
import sys
from types import ModuleType
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models
from mlx.utils import tree_flatten, tree_unflatten

from kvactors.core.testing.family_args import COMMON
from kvactors.core.testing.family_own import NESTED, OWN

__all__ = ["NotBuilt", "all_families", "build", "is_model"]

_SMALL: dict[Any, Any] = {bool: False, float: 1.0, int: 2, str: ""}
# Packages without which a module of mlx-lm exits the process; it uses nothing of them.
_ASKS_FOR = {"olmo": "hf_olmo"}
# Attention weights by these names are large enough for the context to decide the output.
_ATTENTION = ("attn", "attention", "mixer", "mamba", "temporal", "conv")
_GAIN = 3.0


class NotBuilt(Exception):
    """A module that holds no model, or whose arguments are not known."""


def all_families() -> list[str]:
    """Every module of the installed mlx_lm.models."""
    return sorted(module.name for module in pkgutil.iter_modules(mlx_lm.models.__path__))


def is_model(module: Any) -> bool:
    """Whether a module holds a model that can be built by itself."""
    return hasattr(module, "Model") and hasattr(module, "ModelArgs")


def build(family: str, *, seed: int = 0, **changes: Any) -> Any:
    """A random model of a family, evaluated. Raises NotBuilt with the reason."""
    if family in _ASKS_FOR:
        sys.modules.setdefault(_ASKS_FOR[family], ModuleType(_ASKS_FOR[family]))
    module = importlib.import_module(f"mlx_lm.models.{family}")
    if not is_model(module):
        raise NotBuilt("no Model and ModelArgs: a part of other families")
    mx.random.seed(seed)
    try:
        model = module.Model(_arguments(family, module, changes))
        _amplify(model)
        mx.eval(model.parameters())
    except Exception as error:
        raise NotBuilt(f"{type(error).__name__}: {error}") from error
    return model


def _arguments(family: str, module: Any, changes: dict[str, Any]) -> Any:
    own = {"model_type": family, **OWN.get(family, {}), **changes}
    if family in NESTED:
        name, _, args = NESTED[family].partition(":")
        inner = importlib.import_module(f"mlx_lm.models.{name}")
        text = _values(getattr(inner, args or "ModelArgs"), {**OWN.get(name, {}), **own})
        outer = {**own, "model_type": family, "text_config": text}
        return _make(module.ModelArgs, _values(module.ModelArgs, outer))
    return _make(module.ModelArgs, _values(module.ModelArgs, own))


def _make(args: Any, values: dict[str, Any]) -> Any:
    return args.from_dict(values) if hasattr(args, "from_dict") else args(**values)


def _values(args: Any, own: dict[str, Any]) -> dict[str, Any]:
    """Values for the arguments of a class, by their names."""
    values = {}
    known = {**COMMON, **own}
    for parameter in inspect.signature(args).parameters.values():
        if parameter.name in known:
            values[parameter.name] = known[parameter.name]
        elif parameter.default is inspect.Parameter.empty and parameter.annotation in _SMALL:
            values[parameter.name] = _SMALL[parameter.annotation]
    return values


def _amplify(model: Any) -> None:
    """Let the context decide, where random weights would hardly let it through."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and any(part in name.lower() for part in _ATTENTION):
            module.weight = module.weight * _GAIN
    # Gates of experts and some convolutions begin as zeros: every choice would be a tie.
    blank = [
        (name, mx.random.uniform(-1, 1, array.shape))
        for name, array in tree_flatten(model.parameters())
        if array.ndim > 1 and mx.issubdtype(array.dtype, mx.floating) and not array.any()
    ]
    model.update(tree_unflatten(blank))
