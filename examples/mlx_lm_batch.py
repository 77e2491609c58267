"""mlx-lm's own BatchGenerator on 4-bit KV caches, which it cannot batch by itself.

    python examples/mlx_lm_batch.py [--steps 3]

`enable_in_mlx_lm()` teaches mlx-lm's QuantizedKVCache to be merged. Sequences join while
others decode, one is removed in the middle, and what was cached is continued with a question.
"""

import argparse
from typing import Any

from kvactors.core import blas

blas.preload()  # before MLX, whose CPU build on Linux is slow without it

import mlx.core as mx  # noqa: E402
from mlx_lm import load  # noqa: E402
from mlx_lm.generate import BatchGenerator  # noqa: E402
from mlx_lm.models.cache import QuantizedKVCache  # noqa: E402

from kvactors.core.batch import enable_in_mlx_lm  # noqa: E402
from kvactors.core.model.options import DEFAULT_MODEL  # noqa: E402

FACTS = ("My cat is called Biscuit.", "The meeting is on Friday.", "Marta lives in Lisbon.")
QUESTIONS = ("What is my cat called?", "When is the meeting?", "Where does Marta live?")


def main() -> None:
    """Tell three sequences a fact each, staggered, then ask them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3, help="steps between two arrivals")
    steps = parser.parse_args().steps

    enable_in_mlx_lm()
    model, tokenizer = load(str(DEFAULT_MODEL))[:2]
    model.set_dtype(mx.float32)
    generator = BatchGenerator(model, stop_tokens=[[t] for t in tokenizer.eos_token_ids])

    def turn(text: str) -> list[int]:
        return list(tokenizer.encode(f"<|user|>{text}<|end|><|assistant|>"))

    def empty() -> list[Any]:
        return [QuantizedKVCache(group_size=64, bits=4) for _ in model.layers]

    told: dict[int, list[Any]] = {}
    order = []
    for fact in FACTS:
        order += generator.insert([turn(fact)], caches=[empty()])
        for _ in range(steps):
            told |= ended(generator.next()[1])
    # One more joins and is removed again: its neighbours do not notice.
    (extra,) = generator.insert([turn("Never mind.")], caches=[empty()])
    generator.next()
    generator.remove([extra])
    while len(told) < len(FACTS):
        told |= ended(generator.next()[1])
    print("cached tokens:", [told[uid][0].offset for uid in order])

    uids = generator.insert(
        [turn(question) for question in QUESTIONS], caches=[told[uid] for uid in order]
    )
    texts: dict[int, list[int]] = {uid: [] for uid in uids}
    while responses := generator.next_generated():
        for response in responses:
            texts[response.uid].append(response.token)
    for question, uid in zip(QUESTIONS, uids, strict=True):
        print(f"{question}  {tokenizer.decode(texts[uid][:-1])}")


def ended(responses: list[Any]) -> dict[int, list[Any]]:
    """The caches of the sequences that have just ended."""
    return {r.uid: r.prompt_cache for r in responses if r.finish_reason is not None}


if __name__ == "__main__":
    main()
