"""The formats of one file, by name: a memory to bytes, and a file to a memory. Any thread.

    q4-flat     packed 4-bit KV, a tensor per layer     q4.py
    q4-blocks   the same in blocks of 256 tokens        q4.py
    fp16-flat   KV in float16                           fp16.py
    mlx-lm      mlx-lm's prompt cache                   mlx_lm.py

`archive` holds an agent whole and is a matter of the store: archive.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvactors.core.cache.segment import RawTensor
from kvactors.persistence.errors import ImportRejected, TensorFileUnreadable
from kvactors.persistence.files.atomic import Buffer
from kvactors.persistence.files.tensor_file import encode_tensors, read_tensors, tensor_names
from kvactors.persistence.formats import fp16, mlx_lm, q4
from kvactors.persistence.formats.fields import Fields, TensorTable
from kvactors.persistence.formats.neutral import Arrays, Imported, PortableMemory, Target

__all__ = ["ARCHIVE", "FORMATS", "check_readable", "encode_memory", "read_memory"]

ARCHIVE = "archive"


@dataclass(frozen=True, slots=True)
class _Format:
    first: str
    """A tensor that only files of this format have (a pattern)."""
    encode: Callable[[PortableMemory], tuple[list[RawTensor], dict[str, str]]]
    decode: Callable[[TensorTable, Fields, Target], tuple[int, tuple[Arrays, ...]]]
    own: Callable[[Fields], Fields] = lambda fields: fields
    """Where the token ids stand among the metadata."""


_FORMATS = {
    "q4-flat": _Format(r"layer_0_k_weights", q4.encode_flat, q4.decode_flat),
    "q4-blocks": _Format(
        r"cache\.layers\.0\.key_cache\.0\.data", q4.encode_blocks, q4.decode_blocks
    ),
    "fp16-flat": _Format(r"k_layer_0", fp16.encode, fp16.decode),
    "mlx-lm": _Format(r"0\.0(\.0)?", mlx_lm.encode, mlx_lm.decode, mlx_lm.metadata_of),
}
FORMATS = (ARCHIVE, *_FORMATS)


def encode_memory(memory: PortableMemory, form: str) -> list[Buffer]:
    """The chunks of a file in one of FORMATS but the archive. Raises ExportRejected."""
    return encode_tensors(*_FORMATS[form].encode(memory))


def read_memory(
    path: Path,
    form: str | None,
    target: Target,
    tokens: Sequence[int] | None = None,
    seen: Callable[[bytes], None] = lambda _: None,
) -> Imported:
    """Read the file at `path` and check all of it against the target; a `form` of None is found
    out.

    `tokens`: token ids for a file that has none, or instead of its own. The KV of the last
    token is left out: the next turn feeds it. `seen` is given
    what is read. Raises ImportRejected, ModelMismatch, TokensMissing, OSError.
    """
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        if size > target.max_bytes:
            raise ImportRejected(
                "size", f"a file of {size} bytes, and the memory budget is {target.max_bytes}"
            )
        file.seek(0)
        with _known_container(path):
            metadata, tensors = read_tensors(file, size, seen)
    chosen = _chosen(form, [name for name, *_ in tensors])
    table, fields = TensorTable(tensors), Fields(metadata)
    covered, layers = chosen.decode(table, fields, target)
    table.check_empty()
    ids = chosen.own(fields).token_ids(tokens, covered, target)
    return Imported(ids, min(covered, len(ids) - 1), layers)


def check_readable(path: Path, form: str | None) -> None:
    """Raise ImportRejected for a file at `path` that has none of FORMATS but the archive, by its
    header alone; a `form` of None is found out. Raises OSError."""
    with open(path, "rb") as file, _known_container(path):
        size = file.seek(0, 2)
        file.seek(0)
        names = tensor_names(file, size)
    _chosen(form, names)


@contextmanager
def _known_container(path: Path) -> Iterator[None]:
    try:
        yield
    except TensorFileUnreadable as error:
        raise ImportRejected(
            "file", f"{path.name} is neither an archive of kvactors nor a safetensors file: {error}"
        ) from error


def _chosen(form: str | None, names: Sequence[str]) -> _Format:
    if form is not None:
        return _FORMATS[form]
    for format_ in _FORMATS.values():
        if any(re.fullmatch(format_.first, name) for name in names):
            return format_
    raise ImportRejected("format", f"none of {', '.join(FORMATS)}: name the format if it is one")
