"""KV of a store that is not what its layout says: left out, and no harm to anybody."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from makers import OpenSystem
from store_saves import put

from kvactors.actors import Sampling
from kvactors.core.cache.segment import RawTensor
from kvactors.persistence import Save, Store

WAIT = 60
SHORT = Sampling(max_tokens=4)

FORGERIES: dict[str, Callable[[RawTensor], list[RawTensor]]] = {
    "of a layer that is none": lambda t: [("g9.codes", *t[1:])],
    "of no layer": lambda t: [("codes", *t[1:])],
    "twice": lambda t: [t, t],
    "none": lambda t: [],
    "of another dtype": lambda t: [(t[0], "I32", *t[2:])],
    "of no dtype": lambda t: [(t[0], "C64", *t[2:])],
    "of another shape": lambda t: [(*t[:2], (*t[2][:-2], t[2][-1], t[2][-2]), t[3])],
    "too short": lambda t: [(*t[:3], bytes(memoryview(t[3]).cast("B")[:-4]))],
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_an_agent_whose_kv_is_forged_prefills_and_others_go_on(
    open_system: OpenSystem, tmp_path: Path, forge: Callable[[RawTensor], list[RawTensor]]
) -> None:
    system = open_system(store=tmp_path, reproducible=True)
    for name in ("alice", "bob"):
        system.spawn(name).ask([1, 2, 3] * 200, sampling=SHORT).get(timeout=WAIT)
    system.stop()
    store = Store(tmp_path)
    (fingerprint,) = store.fingerprints("alice")
    first, *rest = store.read_kv("alice", fingerprint)
    tensor, *others = first.tensors
    bad = replace(first, tensors=(*forge(tensor), *others))
    put(store, Save("forged", store.read_ledger("alice") or (), fingerprint, (bad, *rest)))
    store.close()

    system = open_system(store=tmp_path, reproducible=True)
    asked = [
        system.spawn(name).ask([4, 5], sampling=SHORT).get(timeout=WAIT)
        for name in ("forged", "alice", "bob")
    ]

    assert [reply.cache for reply in asked] == ["cold", "warm", "warm"]
    assert asked[0].token_ids == asked[1].token_ids
    assert system.health().state == "ok"
