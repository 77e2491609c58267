"""What the precision of the KV cache costs: perplexity, divergence from float, and recall.

    python -m kvactors.bench.quality [--model default] [--text FILE] [--plot out.png]
    [--quick]

The same tokens are read, in chunks, over a float cache and over quantized ones; the
distribution of every scored token is compared with float's. The text is a file's; or the
answers of conversations in held-out worlds, as the default model has them. For that model
recall after a restart is measured too.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvactors.bench.quality.recall import SEED, measure_recall
from kvactors.bench.report import print_json, print_table
from kvactors.core import blas
from kvactors.core.errors import GroupSizeMismatch
from kvactors.core.model.worlds.world import ACKNOWLEDGED, make_world

if TYPE_CHECKING:
    from kvactors.core.model.load import LoadedModel

__all__ = ["main"]

SETTINGS: tuple[dict[str, Any], ...] = (
    {"kv_bits": 8, "group_size": 64},
    {"kv_bits": 8, "group_size": 32},
    {"kv_bits": "k8v4", "group_size": 64},
    {"kv_bits": "k8v4", "group_size": 32},
    {"kv_bits": 4, "group_size": 64},
    {"kv_bits": 4, "group_size": 32},
    {"kv_bits": 4, "group_size": 64, "float_tokens": 256},
)
CHUNK = 256
DOCUMENT = 1024


@dataclass(frozen=True, slots=True)
class Document:
    """Token ids, and which of them are scored: [tokens - 1], from the second on."""

    tokens: list[int]
    scored: np.ndarray


@dataclass(slots=True)
class Quality:
    """One setting against float. `divergence` is the mean KL in nats for a token, `agreement`
    the share of tokens whose likeliest next one is the same. Documents of at most `float_tokens`
    are read in float."""

    kv_bits: Any
    group_size: int | None
    bytes_per_token: int
    perplexity: float
    divergence: float = 0.0
    agreement: float = 1.0
    recall: float | None = None
    float_tokens: int = 0

    @property
    def label(self) -> str:
        """What the KV is kept in."""
        bits = "float" if self.kv_bits is None else str(self.kv_bits)
        return f"{bits}, float to {self.float_tokens}" if self.float_tokens else bits


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every setting; print a table and a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--text", type=Path, help="a text file to read instead of worlds")
    parser.add_argument("--tokens", type=int, default=16_384, help="how many to read at most")
    parser.add_argument("--worlds", type=int, default=10, help="of each size, for recall")
    parser.add_argument("--plot", type=Path, help="write a plot to this file")
    parser.add_argument("--quick", action="store_true", help="few tokens, few settings")
    options = parser.parse_args(arguments)
    blas.preload()
    settings = SETTINGS[::4] if options.quick else SETTINGS
    limit = min(options.tokens, 1024) if options.quick else options.tokens
    worlds = 0 if options.text or options.model != "default" or options.quick else options.worlds

    found = [_float(options.model, options.text, limit)]
    plain = found[0][1]
    rows = [found[0][0]]
    for setting in settings:
        row = _compare(options.model, setting, plain)
        if row is not None:
            rows.append(row)
    for row in rows if worlds else ():
        # An agent that outgrows float_tokens is not restored: it begins over.
        if not row.float_tokens:
            row.recall = _recall(options.model, row, worlds)
    _print(rows, options, sum(int(document.scored.sum()) for document, _ in plain))
    if options.plot:
        _plot(rows, options.plot)


Read = list[tuple[Document, np.ndarray]]
"""Documents, and the log-probabilities of each scored token, [scored, vocabulary]."""


def _load(model: str, setting: dict[str, Any]) -> "LoadedModel":
    from kvactors.core.model.load import load_model
    from kvactors.core.model.options import ModelOptions

    return load_model(model, ModelOptions(**setting))


def _float(model: str, text: Path | None, limit: int) -> tuple[Quality, Read]:
    loaded = _load(model, {"kv_bits": None})
    documents = _documents(loaded, text, limit)
    read = [(document, _read(loaded, document)) for document in documents]
    row = Quality(None, None, _bytes_per_token(loaded, documents), _perplexity(read))
    return row, read


def _compare(model: str, setting: dict[str, Any], plain: Read) -> Quality | None:
    """A setting against float; None if its groups do not divide the head."""
    try:
        loaded = _load(model, setting)
    except GroupSizeMismatch:
        return None
    read = [(document, _read(loaded, document)) for document, _ in plain]
    pairs = [(due, got) for (_, due), (_, got) in zip(plain, read, strict=True)]
    divergence = [(np.exp(due) * (due - got)).sum(-1) for due, got in pairs]
    agreement = [due.argmax(-1) == got.argmax(-1) for due, got in pairs]
    return Quality(
        setting["kv_bits"],
        setting["group_size"],
        _bytes_per_token(loaded, [document for document, _ in plain]),
        _perplexity(read),
        float(np.concatenate(divergence).mean()),
        float(np.concatenate(agreement).mean()),
        float_tokens=setting.get("float_tokens", 0),
    )


def _form(loaded: "LoadedModel", document: Document) -> "LoadedModel":
    return loaded.forms[loaded.form_of(len(document.tokens)).index]


def _bytes_per_token(loaded: "LoadedModel", documents: Sequence[Document]) -> int:
    """Of KV, the mean over all tokens."""
    lengths = [len(document.tokens) for document in documents]
    each = [_form(loaded, document).spec.bytes_per_token for document in documents]
    return sum(b * n for b, n in zip(each, lengths, strict=True)) // sum(lengths)


def _documents(loaded: "LoadedModel", text: Path | None, limit: int) -> list[Document]:
    if text is not None:
        tokens = loaded.chat.encode(text.read_text())[:limit]
        parts = [tokens[at : at + DOCUMENT] for at in range(0, len(tokens) - 1, DOCUMENT)]
        return [Document(part, np.ones(len(part) - 1, bool)) for part in parts]
    documents: list[Document] = []
    while sum(len(document.tokens) for document in documents) < limit:
        documents.append(_conversation(loaded, len(documents)))
    return documents


def _conversation(loaded: "LoadedModel", number: int) -> Document:
    """A held-out world, told and asked, as the model's template renders it; answers count."""
    from kvactors.core.conversation.transcript import Transcript

    rng = np.random.default_rng((SEED, 1 << 20, number))
    world = make_world(rng, facts=int(rng.integers(4, 12)), names="unseen")
    transcript = Transcript(loaded.chat, loaded.tokenizer_id, world.system)
    said = [(turn, ACKNOWLEDGED) for turn in world.turns]
    said += [(fact.question, fact.answer) for fact in world.facts]
    for prompt, answer in said:
        transcript.extend([transcript.render("user", prompt, answer=True)])
        transcript.extend([transcript.given_answer(answer)])
    answers = [turn.is_answer for turn in transcript.turns for _ in turn.token_ids]
    return Document(transcript.token_ids, np.array(answers[1:]))


def _read(loaded: "LoadedModel", document: Document) -> np.ndarray:
    import mlx.core as mx

    from kvactors.core.engine.runner import new_arena

    arena, tokens = new_arena(_form(loaded, document)), document.tokens
    arena.add_row(0, len(tokens))
    parts = []
    for start in range(0, len(tokens) - 1, CHUNK):
        chunk = tokens[start : min(start + CHUNK, len(tokens) - 1)]
        logits = arena.forward(loaded.model, mx.array([chunk]))[0].astype(mx.float32)
        parts.append(np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True)))
        arena.evaluate()
    scored: np.ndarray = np.concatenate(parts)[document.scored]
    return scored


def _perplexity(read: Read) -> float:
    losses = [
        -found[np.arange(len(found)), np.array(document.tokens[1:])[document.scored]]
        for document, found in read
    ]
    return float(np.exp(np.concatenate(losses).mean()))


def _recall(model: str, row: Quality, worlds: int) -> float:
    options = {"kv_bits": row.kv_bits, "group_size": row.group_size, "dtype": "float32"}
    cells, _ = measure_recall(model, options, worlds, 2)
    return sum(cell.recalled for cell in cells) / sum(cell.asked for cell in cells)


def _print(rows: list[Quality], options: argparse.Namespace, tokens: int) -> None:
    where = options.text or "answers in held-out worlds"
    columns = ("kv_bits", "group", "bytes/token", "perplexity", "KL, nats", "top-1", "recall")
    print_table(
        f"{options.model}: {tokens} tokens of {where}, against a float cache.",
        columns,
        [
            (
                row.label,
                row.group_size or "-",
                row.bytes_per_token,
                row.perplexity,
                f"{row.divergence:.5f}",
                f"{row.agreement:.4f}",
                "-" if row.recall is None else f"{row.recall:.3f}",
            )
            for row in rows
        ],
    )
    print_json("quality", model=options.model, tokens=tokens, rows=[asdict(row) for row in rows])


def _plot(rows: list[Quality], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for row in rows[1:]:
        axes.plot(row.bytes_per_token, max(row.divergence, 1e-9), "o")
        label = f"{row.label}, groups of {row.group_size}"
        axes.annotate(label, (row.bytes_per_token, max(row.divergence, 1e-9)))
    axes.set(xlabel="bytes of KV per token", ylabel="KL from float, nats", yscale="log")
    figure.savefig(path)


if __name__ == "__main__":
    main()
