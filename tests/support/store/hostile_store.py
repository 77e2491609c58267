"""Ways to spoil one agent's files in a store, at random and on purpose."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgpack  # type: ignore[import-untyped]
import xxhash
from store_saves import F1

from kvactors.persistence.files.naming import segment_name
from kvactors.persistence.kv.manifest import Entry, Manifest, encode_manifest

__all__ = ["HOSTILE", "spoil_at_random"]

Spoil = Callable[[Path, Random], None]


def files_of(root: Path, agent: str) -> list[Path]:
    return sorted(path for path in root.rglob(f"{agent}-*/*") if path.is_file())


def spoil_at_random(root: Path, random: Random) -> str:
    """Damage one of alice's files; what was done."""
    path = random.choice(files_of(root, "alice"))
    how = random.choice(DAMAGES)
    how(path, random)
    return f"{how.__name__} {path.name}"


def flip(path: Path, random: Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(random.choice((1, 1, 8))):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)


def truncate(path: Path, random: Random) -> None:
    path.write_bytes(path.read_bytes()[: random.randrange(path.stat().st_size)])


def extend(path: Path, random: Random) -> None:
    path.write_bytes(path.read_bytes() + random.randbytes(random.randint(1, 200)))


def overwrite(path: Path, random: Random) -> None:
    data = bytearray(path.read_bytes())
    start = random.randrange(len(data))
    end = min(len(data), start + random.randint(1, 64))
    data[start:end] = random.choice((bytes(end - start), random.randbytes(end - start)))
    path.write_bytes(data)


def insert(path: Path, random: Random) -> None:
    data = path.read_bytes()
    place = random.randrange(len(data))
    path.write_bytes(data[:place] + random.randbytes(random.randint(1, 16)) + data[place:])


def delete(path: Path, random: Random) -> None:
    path.unlink()


def swap(path: Path, random: Random) -> None:
    """The content of another file of the store, of either agent."""
    root = next(parent for parent in path.parents if (parent / "agents").is_dir())
    others = files_of(root, "alice") + files_of(root, "bob")
    path.write_bytes(random.choice([p for p in others if p != path]).read_bytes())


def symlink(path: Path, random: Random) -> None:
    """To the file of the same kind that bob has, or out of the store."""
    root = next(parent for parent in path.parents if (parent / "agents").is_dir())
    same = [other for other in files_of(root, "bob") if other.suffix == path.suffix]
    path.unlink()
    path.symlink_to(random.choice([*same, root.parent, Path(os.devnull)]))


def pipe(path: Path, random: Random) -> None:
    path.unlink()
    os.mkfifo(path)


def directory(path: Path, random: Random) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: tuple[Spoil, ...] = (
    flip, flip, flip, truncate, truncate, extend, overwrite, overwrite, insert, delete,
    swap, symlink, pipe, directory,
)  # fmt: skip


# -- on purpose: every checksum is right ---------------------------------------------------


def ledger_of(root: Path) -> Path:
    [path] = root.glob("agents/alice-*/ledger.log")
    return path


def folder_of(root: Path) -> Path:
    [path] = root.glob("kv/*/alice-*")
    return path


def frame(payload: bytes, *, kind: int = 1, sequence: int = 4, length: int | None = None) -> bytes:
    size = len(payload) if length is None else length
    digest = xxhash.xxh3_64_intdigest(payload)
    fields = struct.pack("<4sBBHIIQQ", b"KVAL", 1, kind, 0, 1, size, sequence, digest)
    return fields + struct.pack("<Q", xxhash.xxh3_64_intdigest(fields)) + payload


def append_frame(root: Path, data: bytes) -> None:
    with open(ledger_of(root), "ab") as file:
        file.write(data)


def manifest(root: Path, **changes: Any) -> None:
    """Alice's manifest with other fields."""
    path = folder_of(root) / "manifest.msgpack"
    fields = msgpack.unpackb(msgpack.unpackb(path.read_bytes())[3])
    body = msgpack.packb({**fields, **changes})
    raw_manifest(root, body)


def raw_manifest(root: Path, body: bytes) -> None:
    data = msgpack.packb([b"KVAM", 1, xxhash.xxh3_64_intdigest(body), body])
    (folder_of(root) / "manifest.msgpack").write_bytes(data)


def segment(root: Path, header: Any, body: bytes = b"", length: int | None = None) -> None:
    """Alice's KV is one segment of this header, which its manifest names."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    data = struct.pack("<Q", len(raw) if length is None else length) + raw + body
    digest = xxhash.xxh3_128_hexdigest(data)
    name = segment_name(0, 8, digest)
    (folder_of(root) / name).write_bytes(data)
    entry = Entry(0, 8, name, len(data), digest, "")
    new = encode_manifest(Manifest("alice", F1, 0, 0, (entry,)))
    (folder_of(root) / "manifest.msgpack").write_bytes(new)


def header(**tensors: Any) -> dict[str, Any]:
    meta = {
        "format": "kvactors-segment", "version": "1", "start": "0", "end": "8",
        "tokens_hash": "", "layout": "",
    }  # fmt: skip
    return {"__metadata__": meta, **tensors}


def tensor(begin: int, end: int, shape: list[int]) -> dict[str, Any]:
    return {"dtype": "U8", "shape": shape, "data_offsets": [begin, end]}


def entries(*rows: tuple[int, int, str, int]) -> list[list[Any]]:
    return [[start, end, file, size, "0" * 32, ""] for start, end, file, size in rows]


GOOD = segment_name(0, 8, "0" * 32)
TWICE = b"\x82\xa1a\x01\xa1a\x02"  # {"a": 1, "a": 2}

HOSTILE: dict[str, Callable[[Path], object]] = {
    "a frame of 4 GiB that is not there": lambda r: append_frame(r, frame(b"", length=2**32 - 1)),
    "a frame nested deeply": lambda r: append_frame(r, frame(b"\x91" * 200_000 + b"\x80")),
    "a frame with an array of 4 billion": lambda r: append_frame(r, frame(b"\xdd\xff\xff\xff\xff")),
    "a frame with a string of 4 GiB": lambda r: append_frame(r, frame(b"\xdb\xff\xff\xff\xff")),
    "a frame that is no list": lambda r: append_frame(r, frame(b"\x01")),
    "a frame of numbers": lambda r: append_frame(r, frame(b"\x92\x01\x02")),
    "a frame with a key twice": lambda r: append_frame(r, frame(b"\x91" + TWICE)),
    "a frame with an extension type": lambda r: append_frame(r, frame(b"\x91\xd4\x05\x00")),
    "a frame out of order": lambda r: append_frame(r, frame(b"\x90", sequence=9)),
    "a second header": lambda r: append_frame(r, frame(b"\x80", kind=0)),
    "a header with a path": lambda r: ledger_of(r).write_bytes(
        frame(msgpack.packb({"agent_id": "../bob"}), kind=0, sequence=0)
    ),
    "a header with a list for an id": lambda r: ledger_of(r).write_bytes(
        frame(msgpack.packb({"agent_id": ["alice"]}), kind=0, sequence=0)
    ),
    "a manifest of a path": lambda r: manifest(
        r, segments=entries((0, 8, "../bob/" + GOOD, 9))
    ),
    "a manifest of an absolute path": lambda r: manifest(
        r, segments=entries((0, 8, "/etc/passwd", 9))
    ),
    "a manifest of NUL": lambda r: manifest(r, segments=entries((0, 8, GOOD + "\0", 9))),
    "a manifest that overlaps": lambda r: manifest(
        r, segments=entries((0, 8, GOOD, 9), (4, 12, GOOD, 9))
    ),
    "a manifest of negative tokens": lambda r: manifest(r, segments=entries((0, -8, GOOD, 9))),
    "a manifest of a segment of 8 EiB": lambda r: manifest(
        r, segments=entries((0, 8, GOOD, 2**63 - 1))
    ),
    "a manifest of a longer ledger": lambda r: manifest(r, ledger_bytes=2**60),
    "a manifest of bob": lambda r: manifest(r, agent_id="bob"),
    "a manifest of another model": lambda r: manifest(r, fingerprint="f" * 16),
    "a manifest of a path as model": lambda r: manifest(r, fingerprint="../../x"),
    "a manifest without fields": lambda r: raw_manifest(r, b"\x80"),
    "a manifest with a key twice": lambda r: raw_manifest(r, TWICE),
    "a manifest nested deeply": lambda r: raw_manifest(r, b"\x91" * 200_000),
    "a segment with a header of 16 EiB": lambda r: segment(r, b"{}", length=2**64 - 1),
    "a segment with tensors that overlap": lambda r: segment(
        r, header(a=tensor(0, 4, [4]), b=tensor(2, 6, [4])), bytes(6)
    ),
    "a segment with a negative shape": lambda r: segment(
        r, header(a=tensor(0, 4, [-2, -2])), bytes(4)
    ),
    "a segment with a huge shape": lambda r: segment(
        r, header(a=tensor(0, 4, [2**62, 2**62])), bytes(4)
    ),
    "a segment with offsets of 8 EiB": lambda r: segment(
        r, header(a=tensor(0, 2**63, [2**63])), bytes(4)
    ),
    "a segment with a tensor twice": lambda r: segment(
        r, json.dumps(header(a=tensor(0, 4, [4])))[:-1].encode()
        + b', "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}', bytes(4),
    ),
    "a segment nested deeply": lambda r: segment(r, b'{"a":' * 100_000),
    "a segment of other tokens": lambda r: segment(
        r, {"__metadata__": {**header()["__metadata__"], "end": "9"}}
    ),
}  # fmt: skip
