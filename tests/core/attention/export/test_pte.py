"""A `.pte` has the calls of the op and what sizes a cache; what runs them is not in it."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir import to_edge
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.schema import Int, KernelCall
from executorch.runtime import Runtime

from kvactors.core.attention.export.llama import Llama, LlamaConfig, export_llama
from kvactors.core.attention.export.pte import read_pte, write_pte
from kvactors.core.cache.family.config import (
    CacheConfig,
    ModelFacts,
    read_metadata,
    write_metadata,
)
from kvactors.core.errors import InvalidConfig

# Torch's own, of its own parts.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
CONFIG = LlamaConfig(
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=16,
    rms_norm_eps=1e-5,
)


@pytest.fixture(scope="module")
def pte(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a random llama."""
    path = tmp_path_factory.mktemp("pte") / "llama.pte"
    write_pte(export_llama(Llama(CONFIG).eval(), most_tokens=40), CONFIG.facts, path)
    return path


def test_what_was_written_is_read(pte: Path) -> None:
    metadata = read_pte(pte)

    assert metadata == {
        "kv_cache.head_dim": 8,
        "kv_cache.n_kv_heads": 2,
        "kv_cache.n_layers": 3,
        "kv_cache.schema_version": 1,
    }
    assert read_metadata(metadata) == ModelFacts(3, 2, 8)
    assert CacheConfig(read_metadata(metadata), capacity=100, bits=None).facts == CONFIG.facts


class Next(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return x + 1


def one_more(tmp_path: Path, metadata: dict[str, Any]) -> Path:
    """A file of another program."""
    program = torch.export.export(Next(), (torch.zeros(2),))
    path = tmp_path / "next.pte"
    edge = to_edge(program, constant_methods=metadata)
    path.write_bytes(edge.to_executorch().buffer)
    return path


def test_another_version_is_refused(tmp_path: Path) -> None:
    metadata = write_metadata({}, CONFIG.facts) | {"kv_cache.schema_version": 2}

    with pytest.raises(InvalidConfig, match=r"schema_version is 2, and 1 is what can be read"):
        read_metadata(read_pte(one_more(tmp_path, metadata)))


def test_a_file_without_any_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"lacks kv_cache\.schema_version"):
        read_metadata(read_pte(one_more(tmp_path, {"answer": 42})))


def test_what_is_no_pte_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.pte").write_text("kv_cache" * 100)

    with pytest.raises(InvalidConfig, match=r"text\.pte is no \.pte that executorch reads"):
        read_pte(tmp_path / "text.pte")


def test_what_the_page_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[4] / "core/attention/export/README.md"
    (shown,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}

    exec(shown, names)

    assert names["logits"].shape == (4, names["model"].config.vocab_size)
    assert names["session"].cache.length == 5
    assert (tmp_path / "llama.pte").exists()


def test_memory_is_planned_for_the_longest_step(pte: Path, tmp_path: Path) -> None:
    program = deserialize_pte_binary(pte.read_bytes()).program
    plan = next(plan for plan in program.execution_plan if plan.name == "forward")

    assert [plan.values[index].val.sizes for index in plan.inputs] == [[40], [40]]
    unbounded = {"x": {0: torch.export.Dim("some", min=1)}}
    any_length = torch.export.export(Next(), (torch.zeros(3),), dynamic_shapes=unbounded)
    with pytest.raises(InvalidConfig, match=r"has no bound.* max=the most tokens"):
        write_pte(any_length, CONFIG.facts, tmp_path / "any.pte")
    assert not (tmp_path / "any.pte").exists()


def test_a_call_for_each_layer_stands_in_the_file(pte: Path) -> None:
    program = deserialize_pte_binary(pte.read_bytes()).program
    plan = next(plan for plan in program.execution_plan if plan.name == "forward")
    op = [operator.name for operator in plan.operators].index("kvcache::update_and_attend")
    calls = [
        instruction.instr_args.args
        for chain in plan.chains
        for instruction in chain.instructions
        if isinstance(instruction.instr_args, KernelCall) and instruction.instr_args.op_index == op
    ]

    layers = [plan.values[arguments[4]].val for arguments in calls]

    assert [layer.int_val for layer in layers if isinstance(layer, Int)] == [0, 1, 2]


def test_executorch_has_no_kernel_for_them(pte: Path) -> None:
    program = Runtime.get().load_program(pte)

    with pytest.raises(RuntimeError, match="Failed to load method forward, error: 0x:14"):
        program.load_method("forward")
