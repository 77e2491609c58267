"""What is exported: a graph with a node of the op for each layer, for any cache and any step."""

from typing import Any

import pytest
import torch
from paired import weights_of

from kvactors.core.attention.export.llama import Llama, LlamaConfig, export_llama
from kvactors.core.attention.export.session import (
    Loaded,
    make_decode_session,
    make_seq_session,
    make_tree_session,
)
from kvactors.core.cache.family.config import CacheConfig
from kvactors.core.errors import InvalidConfig
from kvactors.core.testing.models import tiny_model

TEXT = [5, 9, 3, 17, 4, 8, 2]
Exported = tuple[Llama, torch.export.ExportedProgram]


@pytest.fixture(scope="module")
def exported() -> Exported:
    model = tiny_model()
    config = LlamaConfig.read(vars(model.args))
    llama = Llama(config).eval()
    llama.load_state_dict({name: torch.tensor(w) for name, w in weights_of(model).items()})
    return llama, export_llama(llama)


def nodes(program: torch.export.ExportedProgram) -> list[Any]:
    op = torch.ops.kvcache.update_and_attend.default
    return [node for node in program.graph.nodes if node.target is op]


def test_there_is_a_node_for_each_layer_with_its_number(exported: Exported) -> None:
    _, program = exported

    found = nodes(program)

    assert [node.args[4:] for node in found] == [
        (layer, 64**-0.5, torch.float32) for layer in range(2)
    ]
    # Each has queries, keys and values of its own, and all have the position.
    assert len({one for node in found for one in node.args[:3]}) == 6
    assert {node.args[3].name for node in found} == {"position"}


def test_the_graph_knows_no_cache(exported: Exported) -> None:
    _, program = exported
    signature = program.graph_signature

    assert signature.user_inputs == ("tokens", "position")
    assert len(signature.user_outputs) == 1
    assert dict(signature.buffers_to_mutate) == {}


def test_one_graph_is_prefill_decode_sequences_and_trees(exported: Exported) -> None:
    llama, program = exported
    config = CacheConfig(llama.config.facts, 40, bits=None)
    graph = program.module()

    def decoded(run: Any) -> list[Any]:
        with make_decode_session(config) as one:
            loaded = Loaded(run, one.key)
            return [loaded.execute(TEXT, range(7)), loaded.execute([11], [7])]

    def together(run: Any) -> list[Any]:
        with make_seq_session(config) as many:
            loaded = Loaded(run, many.key)
            many.cache.begin_step([0] * 7)
            trunk = loaded.execute(TEXT, range(7))
            many.cache.seq_cp(0, 1)
            many.cache.begin_step([0, 1, 1])
            return [trunk, loaded.execute([11, 12, 13], [7, 7, 8])]

    def verified(run: Any) -> list[Any]:
        with make_tree_session(config) as tree:
            loaded = Loaded(run, tree.key)
            prompt = loaded.execute(TEXT, range(7))
            tree.cache.propose([-1, 0, 0, 1])
            nodes = loaded.execute([11, 12, 13, 14], tree.cache.positions)
            tree.cache.commit([0, 2])
            return [prompt, nodes, loaded.execute([15], [9])]

    for use in (decoded, together, verified):
        for mine, theirs in zip(use(llama), use(graph), strict=True):
            assert torch.equal(mine, theirs)


def test_the_nodes_behind_have_the_dtype_that_the_op_was_told() -> None:
    class Cast(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, position: Any) -> Any:
            out = torch.ops.kvcache.update_and_attend(x, x, x, position, 3, 0.5, torch.float16)
            return out * 2

    program = torch.export.export(Cast(), (torch.zeros(1, 2, 3, 4), torch.arange(3)))

    (node,) = nodes(program)
    assert node.meta["val"].dtype == torch.float16
    (user,) = node.users
    assert user.meta["val"].dtype == torch.float16


def test_a_llama_that_is_computed_otherwise_is_refused(exported: Exported) -> None:
    with pytest.raises(InvalidConfig, match="no rope_scaling"):
        LlamaConfig.read({"rope_scaling": {"factor": 2}})
