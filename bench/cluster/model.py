"""The model of nodes: the random llama, as files, since each node's process opens it by name."""

from dataclasses import asdict
from pathlib import Path

from kvactors.bench.random_model import VOCABULARY, random_llama

__all__ = ["write_model"]

UNKNOWN = "<unk>"


def write_model(folder: Path) -> None:
    """A directory that mlx-lm loads: no token of it ends a turn."""
    from mlx_lm.utils import save_config, save_model
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model = random_llama()[0]
    save_model(folder, model)
    save_config(asdict(model.args), folder / "config.json")
    words = {UNKNOWN: 0} | {f"w{number}": number for number in range(1, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=UNKNOWN).save_pretrained(folder)
