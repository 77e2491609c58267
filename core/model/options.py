"""What a caller may choose about a model; checked before anything is loaded. No MLX."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvactors.core.attention.policy import check_attention
from kvactors.core.cache.kv_bits import KVBits, check_bits
from kvactors.core.cache.spec import choose_group_size
from kvactors.core.conversation.token_text import NO_VARIABLES
from kvactors.core.errors import InvalidConfig, InvalidInput
from kvactors.core.numbers import whole
from kvactors.core.text import check_text, check_texts

__all__ = ["DEFAULT_MODEL", "DRAFT_MODEL", "MOST_TOLD", "ModelOptions", "check_template_kwargs"]

DEFAULT_MODEL = Path(__file__).parent / "default_model"
# What drafts for it.
DRAFT_MODEL = Path(__file__).parent / "draft_model"
# Characters of what one turn tells a chat template.
MOST_TOLD = 16 << 10
_DTYPES = ("auto", "float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What AgentSystem passes on; see there for the meaning. Raises InvalidConfig."""

    kv_bits: KVBits = 4
    float_tokens: int = 0
    group_size: int | None = None
    context: int | None = None
    dtype: str = "auto"
    attention: str = "auto"
    reproducible: bool = False
    template_kwargs: dict[str, Any] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        check_bits(self.kv_bits)
        self._tokens("float_tokens", 0)
        if self.dtype not in _DTYPES:
            raise InvalidConfig(f"dtype must be one of {', '.join(_DTYPES)}, not {self.dtype!r}")
        if self.context is not None:
            self._tokens("context", 2)
        check_attention(self.attention)
        if self.group_size is not None:
            size = whole(self.group_size)
            object.__setattr__(self, "group_size", self.group_size if size is None else size)
            choose_group_size(self.group_size, None, self.group_size)
        check_template_kwargs(self.template_kwargs)
        if self.name is not None and not (isinstance(self.name, str) and self.name):
            raise InvalidConfig(f"model_name must be a non-empty string, not {self.name!r}")
        check_text("model_name", self.name or "", InvalidConfig)

    def _tokens(self, name: str, least: int) -> None:
        value = getattr(self, name)
        found = whole(value)
        if found is None or found < least:
            raise InvalidConfig(f"{name} must be an int of at least {least} tokens: {value!r}")
        object.__setattr__(self, name, found)


def check_template_kwargs(
    given: object, error: type[InvalidInput] = InvalidConfig, most: int | None = None
) -> str:
    """What is `given`, as JSON of `most` characters. Raises `error` for what is no dict by name, or
    would identify a model's KV in this process alone, or is no variable of a template."""
    if given is not None and not isinstance(given, dict):
        raise error(f"template_kwargs must be a dict, not {given!r:.80}")
    for name in given or ():
        if not isinstance(name, str):
            raise error(f"template_kwargs are named by strings, not {name!r:.80}")
        if name in NO_VARIABLES:
            raise error(f"template_kwargs are what the chat template reads, and {name} is not")
    try:
        check_texts("template_kwargs", given, error)
        written = json.dumps(given, sort_keys=True, allow_nan=False)
    except error:
        raise
    except (TypeError, ValueError, RecursionError) as failure:
        raise error(f"template_kwargs must have a JSON form: {failure}") from failure
    if most is not None and len(written) > most:
        raise error(f"template_kwargs of a turn have {most} characters as JSON, not {len(written)}")
    return written
