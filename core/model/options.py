"""What a caller may choose about a model; checked before anything is loaded. No MLX."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvactors.core.attention.policy import check_attention
from kvactors.core.cache.kv_bits import KVBits, check_bits
from kvactors.core.cache.spec import choose_group_size
from kvactors.core.errors import InvalidConfig

__all__ = ["DEFAULT_MODEL", "ModelOptions"]

DEFAULT_MODEL = Path(__file__).parent / "default_model"
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
        if type(self.float_tokens) is not int or self.float_tokens < 0:
            raise InvalidConfig(
                f"float_tokens must be an int of at least 0 tokens: {self.float_tokens!r}"
            )
        if self.dtype not in _DTYPES:
            raise InvalidConfig(f"dtype must be one of {', '.join(_DTYPES)}, not {self.dtype!r}")
        if self.context is not None and (not isinstance(self.context, int) or self.context < 2):
            raise InvalidConfig(f"context must be an int of at least 2 tokens: {self.context!r}")
        check_attention(self.attention)
        if self.group_size is not None:
            choose_group_size(self.group_size, None, self.group_size)
        if self.template_kwargs is not None and not isinstance(self.template_kwargs, dict):
            raise InvalidConfig(f"template_kwargs must be a dict, not {self.template_kwargs!r}")
        if self.name is not None and not (isinstance(self.name, str) and self.name):
            raise InvalidConfig(f"model_name must be a non-empty string, not {self.name!r}")
