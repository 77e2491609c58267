"""Caches for your own loop around an mlx-lm model: one sequence, sequences that fork, trees."""

from kvactors.core.arena.sessions.session import (
    Session,
    make_decode_session,
    make_seq_session,
    make_tree_session,
    model_facts,
)
from kvactors.core.cache.family.config import (
    CacheConfig,
    ModelFacts,
    read_metadata,
    write_metadata,
)
from kvactors.core.cache.family.faces import Cache, DecodeCache, SeqCache, TreeCache
from kvactors.core.cache.family.registry import registry

__all__ = [
    "Cache",
    "CacheConfig",
    "DecodeCache",
    "ModelFacts",
    "SeqCache",
    "Session",
    "TreeCache",
    "make_decode_session",
    "make_seq_session",
    "make_tree_session",
    "model_facts",
    "read_metadata",
    "registry",
    "write_metadata",
]
