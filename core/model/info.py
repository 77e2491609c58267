"""ModelInfo: what is known of a loaded model without its arrays. Loads no MLX."""

from dataclasses import dataclass

from kvactors.core.cache.spec import ModelCacheSpec
from kvactors.core.conversation.chat_format import ChatFormat

__all__ = ["ModelInfo"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What other threads may know of a loaded model: no array, no module."""

    name: str
    """As it was asked for."""
    chat: ChatFormat
    """Tokenizer and template."""
    spec: ModelCacheSpec
    """Layers, vocabulary, context."""
    model_type: str
    """Its architecture, as its configuration names it."""
    fingerprint: str
    """Identity of its KV."""
    tokenizer_id: str
    """Identity of its tokenizer."""
    device: str
    """Where it runs."""
    memory_budget: int
    """Bytes of KV it may hold."""
    eager: str = ""
    """Why its decode steps are not replayed; empty: they may be."""
    draft: str = ""
    """The model that drafts for it, if one does."""
