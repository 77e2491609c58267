"""Opening a model: through mlx-lm by a directory or a hub name, or what a callable makes; and the
form that its weights compute in. GPU thread."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from huggingface_hub import snapshot_download
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load as mlx_load
from mlx_lm.utils import load_config, load_tokenizer

from kvactors.core.errors import ModelError, ModelNotFound
from kvactors.core.model.options import DEFAULT_MODEL, ModelOptions
from kvactors.core.quant.device import on_cpu

__all__ = ["locate", "open_model", "open_tokenizer", "ready"]

# What a tokenizer is made of; weights are not fetched for it.
TOKENIZER_FILES = ["*.json", "*.jsonl", "*.jinja", "*.txt", "*.model", "*.tiktoken"]


def open_model(
    source: str | Path | Callable[[], Any], options: ModelOptions
) -> tuple[str, Any, Any, dict[str, Any]]:
    """Name, model, tokenizer and config, if it has one, of a `source`, as they are there. Raises
    ModelError."""
    name, model, tokenizer, config = _opened(source, options)
    return name, model, _wrapped(tokenizer), config


def open_tokenizer(source: str | Path) -> Any:
    """The tokenizer of a `source` alone, as `open_model` gives it: no weights are read. Any thread.
    Raises ModelNotFound."""
    path = Path(target := locate(source))
    try:
        if not path.exists():
            path = Path(snapshot_download(target, allow_patterns=TOKENIZER_FILES))
        ends = load_config(path).get("eos_token_id")
        return _wrapped(load_tokenizer(path, eos_token_ids=ends))
    except Exception as error:
        raise ModelNotFound(f"cannot load the tokenizer of {str(source)!r}: {error}") from error


def ready(model: Any, dtype: str) -> bool:
    """Bring a model's weights into the form that it computes in, as `dtype` says, evaluated;
    whether they were cast for that."""
    cast = _cast(model, dtype)
    _straighten(model)
    return cast


def _wrapped(tokenizer: Any) -> Any:
    if not isinstance(tokenizer, TokenizerWrapper) and hasattr(tokenizer, "init_kwargs"):
        tokenizer = TokenizerWrapper(tokenizer)
    if hasattr(tokenizer, "model_max_length"):
        # transformers only warns beyond it; a turn beyond the context is refused.
        tokenizer.model_max_length = sys.maxsize
    return tokenizer


def _opened(
    source: str | Path | Callable[[], Any], options: ModelOptions
) -> tuple[str, Any, Any, dict[str, Any]]:
    if callable(source):
        return options.name or "model", *_call(source), {}
    target = locate(source)
    try:
        model, tokenizer, config = mlx_load(target, return_config=True)
    except SystemExit as error:
        # Some modules of mlx-lm exit the process where another package is missing.
        raise ModelError(
            f"cannot load {str(source)!r}: mlx-lm's module of its family needs a package that is "
            "not installed, whose name it printed"
        ) from error
    except Exception as error:
        where = "this directory" if Path(target).exists() else "the hub or its local cache"
        raise ModelNotFound(f"cannot load {str(source)!r} from {where}: {error}") from error
    return options.name or str(source), model, tokenizer, config


def locate(source: str | Path) -> str:
    """The directory, or the name on the hub, that is meant. Raises ModelNotFound if it is a
    directory that is no model's."""
    try:
        path = DEFAULT_MODEL if source == "default" else Path(source).expanduser()
        if path.exists() or _looks_like_path(str(source)):
            _require_files(path)
            return str(path)
    except (RuntimeError, OSError) as error:
        raise ModelNotFound(f"{str(source)!r:.200}: {error}") from error
    return str(source)


def _call(source: Callable[[], Any]) -> tuple[Any, Any]:
    try:
        made = source()
    except Exception as error:
        raise ModelError(f"the model callable raised {type(error).__name__}: {error}") from error
    if not isinstance(made, tuple | list) or len(made) != 2 or not hasattr(made[0], "parameters"):
        raise ModelError(f"the model callable must return (model, tokenizer), not {made!r:.80}")
    if not all(hasattr(made[1], name) for name in ("encode", "decode")):
        raise ModelError(f"a tokenizer needs encode and decode: {type(made[1]).__name__}")
    try:
        mx.eval(made[0].parameters())
    except RuntimeError as error:
        raise ModelError(
            f"the weights cannot be evaluated here ({error}): make the model inside the callable, "
            "or evaluate it on the thread that made it: mx.eval(model.parameters())"
        ) from error
    return made[0], made[1]


def _looks_like_path(source: str) -> bool:
    return source.startswith((".", "~", "/")) or source.count("/") != 1


def _require_files(path: Path) -> None:
    if not path.is_dir():
        raise ModelNotFound(f"no model directory at {path}; a name on the hub is OWNER/NAME")
    missing = [
        name
        for name, pattern in (
            ("config.json", "config.json"),
            ("model*.safetensors", "model*.safetensors"),
            ("tokenizer.json or tokenizer.model", "tokenizer*.*"),
        )
        if not any(path.glob(pattern))
    ]
    if missing:
        raise ModelNotFound(f"{path} lacks {', '.join(missing)}")


def _cast(model: Any, dtype: str) -> bool:
    kept = [] if dtype == "auto" else _kept(model)
    if dtype == "auto":
        half = any(
            array.dtype in (mx.float16, mx.bfloat16)
            for _, array in nn.utils.tree_flatten(model.parameters())
        )
        if not half or not on_cpu():
            return False
        # MLX's half-precision products do not use BLAS on the CPU.
        dtype = "float32"
    model.set_dtype(getattr(mx, dtype))
    if kept:
        model.load_weights(kept, strict=False)
    mx.eval(model.parameters())
    return True


def _kept(model: Any) -> list[tuple[str, mx.array]]:
    """What a model of mlx-lm's keeps in float32 when it is cast: a router's corrections, say."""
    casts = getattr(model, "cast_predicate", None)
    if casts is None:
        return []
    return [
        (name, array)
        for name, array in nn.utils.tree_flatten(model.parameters())
        if array.dtype == mx.float32 and not casts(name)
    ]


def _straighten(model: Any) -> None:
    """Some models transpose weights when they load them: few rows would copy these in each
    product on a CPU (bench/LOG.md)."""
    if on_cpu() and isinstance(model, nn.Module):
        model.update(nn.utils.tree_map(mx.contiguous, model.parameters()))
        mx.eval(model.parameters())
