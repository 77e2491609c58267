"""What a caller may choose about a model; checked before anything is loaded. No MLX."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvactors.core.attention.policy import check_attention
from kvactors.core.cache.kv_bits import KVBits, check_bits
from kvactors.core.cache.spec import choose_group_size
from kvactors.core.conversation.turn import check_template_kwargs
from kvactors.core.errors import InvalidConfig
from kvactors.core.numbers import whole
from kvactors.core.text import check_text

__all__ = ["DEFAULT_MODEL", "DRAFT_MODEL", "ModelOptions"]

DEFAULT_MODEL = Path(__file__).parent / "default_model"
# What drafts for it.
DRAFT_MODEL = Path(__file__).parent / "draft_model"
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
