"""The small random models that are checked: one for each kind of layer, of mlx-lm's own classes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvactors.core.model.load import LoadedModel

__all__ = ["KINDS", "VOCABULARY", "Kind"]

VOCABULARY = 128


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of layer, and the family of mlx-lm that stands for it.

    `one_by_one`: where sums must not depend on the company its rows are run one by one. `grid`:
    sums of its linear layers are exact in any order, and attention is pinned to codes; else it is
    run as users run a model of half precision, by default.
    """

    name: str
    family: str
    one_by_one: bool = False
    grid: bool = True

    @property
    def options(self) -> dict[str, Any]:
        """How AgentSystem is to run it."""
        return {"attention": "packed"} if self.grid else {"dtype": "float16"}

    def build(self) -> tuple[Any, Any]:
        """(model, tokenizer) for `AgentSystem(model=...)`. It never ends a turn by itself."""
        from kvactors.core.testing.models import snap_to_grid

        model, tokenizer = self.build_floats()
        return (snap_to_grid(model) if self.grid else model), tokenizer

    def build_floats(self) -> tuple[Any, Any]:
        """The same with the weights as they were drawn."""
        from kvactors.core.testing.families import build
        from kvactors.core.testing.models import PlainTokenizer

        tokenizer = PlainTokenizer(VOCABULARY)
        tokenizer.eos_token_ids = set()
        return build(self.family, num_hidden_layers=2, vocab_size=VOCABULARY), tokenizer

    def load(self) -> "LoadedModel":
        """The model for this thread, as in the conversations."""
        from kvactors.core.model.load import load_model
        from kvactors.core.model.options import ModelOptions

        return load_model(self.build, ModelOptions(**self.options))


KINDS = (
    Kind("full attention", "qwen3"),
    Kind("sliding window", "gemma3_text"),
    Kind("latent (MLA)", "deepseek_v3", one_by_one=True),
    Kind("recurrent (SSM)", "mamba2"),
    Kind("experts (MoE)", "qwen3_moe"),
    Kind("float16, by default", "qwen3", grid=False),
)
