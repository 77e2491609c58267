"""What the page of sessions shows runs, each part in ten lines."""

import re
from pathlib import Path
from typing import Any

import pytest

from kvactors.core.errors import FaceMismatch, InvalidConfig
from kvactors.core.sessions import (
    CacheConfig,
    SeqCache,
    Session,
    make_decode_session,
    model_facts,
    registry,
)

PAGE = Path(__file__).parents[4] / "core/arena/sessions/README.md"
PARTS = [
    part
    for part in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    if not part.startswith("def ")
]


def test_each_part_has_ten_lines_at_most() -> None:
    lines = [sum(bool(line) for line in part.splitlines()) for part in PARTS]

    assert len(lines) == 6
    assert max(lines) <= 10


def test_all_parts_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    decode, sequences, tree, found, written, read = PARTS
    names: dict[str, Any] = {}
    others = len(registry)

    def run(part: str) -> Session[Any]:
        exec(part, names)
        assert len(registry) == others
        session: Session[Any] = names["session"]
        return session

    decoded = run(decode)
    prompt, vocabulary = names["prompt"], names["logits"].shape[1]
    assert decoded.cache.length == len(prompt) + 1
    forked = run(sequences)
    assert [forked.cache.seq_len(one) for one in (0, 1)] == [len(prompt) + 1] * 2
    assert names["logits"].shape == (2, vocabulary)
    assert run(tree).cache.length == len(prompt) + 3
    assert names["logits"].shape == (4, vocabulary)
    run(found)
    assert capsys.readouterr().out == f"3 {others}\n"
    run(written)
    run(read)
    assert names["config"] == CacheConfig(model_facts(names["model"]), 2000, 8, 32)
    assert names["metadata"]["kv_cache.schema_version"] == "1"


def test_what_it_says_of_the_registry_is_so() -> None:
    names: dict[str, Any] = {}
    exec(PARTS[0], names)

    session = make_decode_session(names["model"], names["config"])
    with session, pytest.raises(FaceMismatch, match="which is no SeqCache"):
        registry.get(session.key, SeqCache)
    with pytest.raises(InvalidConfig, match="no cache has the key"):
        registry.get(session.key, SeqCache)
