"""Files of a hostile author: whatever a header says, an import ends in a typed error."""

import json
import struct
from pathlib import Path
from random import Random
from typing import Any

import pytest
from exchange_agents import refused

from kvactors.actors import (
    AgentSystem,
    ImportRejected,
)

FORMS = ("q4-flat", "q4-blocks", "fp16-flat", "mlx-lm")


WEIRD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**70,
    "",
    [],
    {},
    "x",
    1.5,
    [[]],
    "[1",
    {"a": 1},
    [1] * 5,
)


def header(entries: Any, *, length: int | None = None, body: bytes = b"") -> bytes:
    raw = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + body


ONE = {"dtype": "U32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        header({}, length=2**63),
        header({}, length=99),
        header(b"[" * 200_000),
        header(b"not json"),
        header([]),
        header({}),
        header({"__metadata__": 7}),
        header({"layer_0_k_weights": ONE}),
        header({"layer_0_k_weights": {**ONE, "data_offsets": [0, 2**62]}}, body=b"1234"),
        header({"layer_0_k_weights": {**ONE, "data_offsets": [-4, 0]}}, body=b"1234"),
        header({"layer_0_k_weights": {**ONE, "shape": [-1]}}, body=b"1234"),
        header({"layer_0_k_weights": {**ONE, "shape": [2**40, 2**40]}}, body=b"1234"),
        header({"layer_0_k_weights": {**ONE, "dtype": ["U32"]}}, body=b"1234"),
        header({"layer_0_k_weights": ONE, "layer_0_v_weights": ONE}, body=b"1234"),
        header(b'{"layer_0_k_weights":' + json.dumps(ONE).encode() + b',"layer_0_k_weights":1}'),
        b"PK\x03\x04 no zip file",
    ],
)
def test_a_hostile_header_ends_in_a_typed_error(
    system: AgentSystem, path: Path, data: bytes
) -> None:
    path.write_bytes(data)

    assert refused(system, path).field in ("file", "format")


def mutated(good: bytes, random: Random) -> bytes:
    """A bit of the header flipped, or one of its values replaced."""
    (size,) = struct.unpack_from("<Q", good)
    if random.random() < 0.5:
        data = bytearray(good)
        data[random.randrange(8 + size)] ^= 1 << random.randrange(8)
        return bytes(data)
    entries = json.loads(good[8 : 8 + size])
    place = entries[random.choice(list(entries))]
    place[random.choice(list(place))] = random.choice(WEIRD)
    return header(entries, body=good[8 + size :])


@pytest.mark.parametrize("form", FORMS)
def test_a_mutated_header_is_refused_or_harmless(
    system: AgentSystem, path: Path, form: str
) -> None:
    system.export_agent("alice", path, format=form)
    good, random, refusals = path.read_bytes(), Random(form), 0
    for number in range(100):
        path.write_bytes(mutated(good, random))
        try:
            agent = system.import_agent(path, f"{form} {number}")
        except ImportRejected:
            refusals += 1
        else:
            known = system.spawn("alice").transcript().token_ids
            # A token id may have become another: nothing in these formats can tell.
            assert len(agent.transcript().token_ids) == len(known)
            system.forget(agent.agent_id)
    assert refusals > 50
