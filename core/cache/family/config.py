"""How large a cache is: what a model's file says of it, and what its user decides
[cache-family, 3.2, 4.5].

A file has facts of the architecture alone, under `kv_cache.*` and with the version of that schema.
How many tokens there are room for, and in how many bits, is decided where the model is run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvactors.core.cache.kv_bits import check_bits
from kvactors.core.cache.spec import choose_group_size
from kvactors.core.errors import InvalidConfig
from kvactors.core.numbers import whole

__all__ = [
    "PREFIX",
    "SCHEMA_VERSION",
    "CacheConfig",
    "ModelFacts",
    "read_metadata",
    "write_metadata",
]

SCHEMA_VERSION = 1
PREFIX = "kv_cache."
_VERSION = f"{PREFIX}schema_version"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the architecture fixes: layers, heads of keys (not of queries), numbers in one key."""

    n_layers: int
    n_kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        for name in self.__slots__:
            found = whole(getattr(self, name))
            if found is None or found < 1:
                raise InvalidConfig(
                    f"{PREFIX}{name} is a whole number from 1 on, not {getattr(self, name)!r}"
                )


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """A cache for a model of these `facts`, with room for `capacity` tokens at most: all that live
    at once, shared ones once, those of a tree too. It begins small and grows.

    `bits` is 4, 8, or None for the model's own floats, `group_size` 32, 64, 128, or what fits. What
    attention returns has the model's dtype in any case. Raises InvalidConfig, GroupSizeMismatch.
    """

    facts: ModelFacts
    capacity: int
    bits: int | None = 4
    group_size: int | None = None

    def __post_init__(self) -> None:
        found = whole(self.capacity)
        if found is None or found < 1:
            raise InvalidConfig(
                f"capacity is a whole number of tokens from 1 on, not {self.capacity!r}"
            )
        if self.bits is not None and whole(self.bits) is None:
            raise InvalidConfig(f"bits must be 4, 8 or None (float), not {self.bits!r}")
        check_bits(self.bits)
        choose_group_size(self.facts.head_dim, self.bits, self.group_size)


def write_metadata(metadata: dict[str, Any], facts: ModelFacts) -> dict[str, Any]:
    """The `facts` of a model, added to the `metadata` of its file; returns these."""
    metadata[_VERSION] = SCHEMA_VERSION
    for name in ModelFacts.__slots__:
        metadata[PREFIX + name] = getattr(facts, name)
    return metadata


def read_metadata(metadata: Mapping[str, Any]) -> ModelFacts:
    """The facts that `write_metadata` wrote; numbers may have become text, as files keep them.
    Raises InvalidConfig for another version, and where one is missing or is no number."""
    version = _number(metadata, _VERSION)
    if version != SCHEMA_VERSION:
        raise InvalidConfig(
            f"{_VERSION} is {version}, and {SCHEMA_VERSION} is what can be read: write the model's "
            "metadata again with write_metadata"
        )
    return ModelFacts(*(_number(metadata, PREFIX + name) for name in ModelFacts.__slots__))


def _number(metadata: Mapping[str, Any], name: str) -> int:
    if name not in metadata:
        raise InvalidConfig(f"the metadata lacks {name}: write_metadata puts it there")
    value = metadata[name]
    found = int(value) if isinstance(value, str) and value.isdecimal() else whole(value)
    if found is None:
        raise InvalidConfig(f"{name} is a whole number, not {value!r}")
    return found
