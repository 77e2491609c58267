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
SAID: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 448,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 1792,
    "rms_norm_eps": 1e-5,
}
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


@pytest.mark.parametrize(
    "other",
    [
        {"model_type": "mistral"},
        {"hidden_act": "gelu"},
        {"mlp_bias": True},
        {"rope_scaling": {"factor": 2}},
        {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_llama_that_is_computed_otherwise_is_refused(other: dict[str, Any]) -> None:
    (name,) = other
    with pytest.raises(InvalidConfig, match=f"another way than {name}="):
        LlamaConfig.read(SAID | other)


def test_what_a_config_leaves_out_is_what_is_usual() -> None:
    config = LlamaConfig.read(SAID)

    assert (config.num_key_value_heads, config.head_dim, config.rope_theta) == (4, 64, 10_000.0)
    grouped = LlamaConfig.read(SAID | {"num_key_value_heads": 2, "head_dim": None})
    assert (grouped.num_key_value_heads, grouped.head_dim) == (2, 64)


def test_what_turns_positions_is_read_where_newer_configs_have_it() -> None:
    rope = {"rope_type": "default", "rope_theta": 500_000.0}

    assert LlamaConfig.read(SAID | {"rope_parameters": rope}).rope_theta == 500_000.0


@pytest.mark.parametrize("name", ["hidden_size", "num_attention_heads"])
def test_a_config_that_lacks_what_has_no_usual_value_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match=f"lacks .*{name}"):
        LlamaConfig.read({said: value for said, value in SAID.items() if said != name})
