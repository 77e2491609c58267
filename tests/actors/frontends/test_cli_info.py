"""`kvactors info` on models of every kind, saved to disk as users have them."""

import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from typer.testing import CliRunner

from kvactors.actors.frontends.cli.app import app
from kvactors.core.model.options import DEFAULT_MODEL
from kvactors.core.testing.families import build
from kvactors.core.testing.family_args import WINDOW

WIDE = 200
# A window and a block more, in steps of 64.
ROOM = 320


def packed(dim: int, bits: int, group: int, heads: int = 2) -> int:
    """Bytes of one token's keys, or values: codes, and a float32 scale and bias a group."""
    return heads * (dim * bits // 8 + dim // group * 8)


@pytest.fixture
def info(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Status and lines that `kvactors info` prints of a tiny model, each of single spaces."""
    monkeypatch.setenv("COLUMNS", str(WIDE))

    def show(family: str, **changes: Any) -> tuple[int, list[str]]:
        save(tmp_path, family, **changes)
        result = CliRunner().invoke(app, ["info", str(tmp_path)])
        printed = result.stderr if result.exit_code else result.stdout
        return result.exit_code, [" ".join(line.split()) for line in printed.splitlines()]

    return show


def save(folder: Path, family: str, **changes: Any) -> None:
    """A tiny model with its configuration, its weights, and the default tokenizer."""
    model = build(family, **changes)
    config = {name: value for name, value in asdict(model.args).items() if value is not None}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": family}))
    mx.save_safetensors(f"{folder}/model.safetensors", dict(tree_flatten(model.parameters())))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEFAULT_MODEL / name, folder)


def layers(lines: list[str]) -> list[str]:
    """The table of layers, without its head."""
    return lines[next(i for i, line in enumerate(lines) if line.startswith("layers kind")) + 1 :]


@pytest.mark.parametrize("family", ["gemma3_text", "gpt_oss"])
def test_windows_with_and_without_sinks(info: Any, family: str) -> None:
    status, lines = info(family, head_dim=64)

    token = 2 * packed(64, 4, 64)
    kept = "4 bits, groups of 64, scales in float32"
    window = f"; the last {WINDOW} tokens, room for {ROOM}"
    assert status == 0
    assert layers(lines)[:2] == [
        f"0 sliding 2 64 {kept}{window} {token}",
        f"1 full 2 64 {kept} {token}",
    ]
    assert f"KV per token, kept {2 * token} bytes (6.4 times less)" in lines
    assert f"windows and states at most {2 * ROOM * token / 1000:.1f} kB an agent" in lines


def test_latents_and_the_mask_that_makes_them_floats(info: Any) -> None:
    status, lines = info("deepseek_v3")

    token = packed(64, 8, 64, heads=1) + packed(32, 8, 32, heads=1)
    kept = "keys 8 bits, groups of 64, scales in float32; values 8 bits, groups of 32, scales in"
    assert status == 0
    assert layers(lines) == [f"0-3 latent 1 64 / 32 {kept} float32; read as floats {token}"]
    assert f"KV per token, kept {4 * token} bytes (3.4 times less)" in lines


def test_states_of_a_model_without_attention(info: Any) -> None:
    status, lines = info("mamba2", num_heads=8)

    # 3 tokens of the convolution's 256 + 2 * 16 channels; 8 heads of 32 x 16.
    state = 4 * (3 * 288 + 8 * 32 * 16)
    assert status == 0
    assert layers(lines) == [
        f"0-3 recurrent - - state of {state:,} bytes in float, at the ends of turns 0"
    ]
    assert "KV per token, kept 0 bytes" in lines
    assert f"windows and states at most {4 * 2 * state / 1000:.1f} kB an agent" in lines


def test_a_hybrid_names_both_of_its_kinds(info: Any) -> None:
    status, lines = info("qwen3_next")

    assert status == 0
    assert [line.split()[1] for line in layers(lines)] == ["recurrent", "full"] * 2
    assert f"KV per token, kept {2 * 2 * packed(32, 4, 32)} bytes (5.3 times less)" in lines


def test_a_head_dim_that_no_group_divides_stays_float_and_it_says_why(info: Any) -> None:
    status, lines = info("qwen3", head_dim=80)

    why = "float32: neither 64 nor 32 divides the head dim"
    assert status == 0
    assert layers(lines) == [f"0-3 full 2 80 {why} {2 * 2 * 80 * 4:,}"]
    assert f"KV per token, kept {4 * 2 * 2 * 80 * 4:,} bytes (1.0 times less)" in lines


STATES = "(recurrent): a state takes the tokens of a step in turn"
LATENTS = "(latent): the model attends itself, to one token otherwise than to several"
OWN = "(full): the model attends itself, over floats of all rows together"


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("llama", ["tokens of a step as each row asks"]),
        ("gpt_oss", ["tokens of a step as each row asks"]),
        ("qwen3_next", ["tokens of a step as many in each row", f"layers 0, 2 {STATES}"]),
        ("gemma2", ["tokens of a step as many in each row", f"layers 0-3 {OWN}"]),
        ("deepseek_v3", ["tokens of a step as many in each row", f"layers 0-3 {LATENTS}"]),
        (
            "deepseek_v32",
            [
                "tokens of a step as many in each row: rows run one by one",
                f"layers 0, 2, 4, 6 {LATENTS}",
                f"layers 1, 3, 5, 7 {OWN}",
            ],
        ),
    ],
)
def test_layers_in_which_rows_take_as_many_tokens_each_are_named(
    info: Any, family: str, said: list[str]
) -> None:
    # A whole number in every configuration of gemma2.
    whole = {"query_pre_attn_scalar": 144} if family == "gemma2" else {}
    status, lines = info(family, **whole)

    at = lines.index(said[0])
    assert status == 0
    assert lines[at : at + len(said)] == said
    assert lines[at + len(said)].startswith("decode steps ")


def test_a_refused_model_is_one_line_that_names_layer_kind_and_need(info: Any) -> None:
    status, lines = info("deepseek_v41")

    assert status == 2
    assert len(lines) == 1
    assert "layer 0 caches with LayerCache: supported are" in lines[0]
    assert "needs a layer cache of its own in kvactors" in lines[0]


def test_a_module_of_mlx_lm_that_exits_is_a_refusal_too(
    info: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if it was not installed, on a machine that may have it.
    monkeypatch.setitem(sys.modules, "hf_olmo", None)
    save(tmp_path, "qwen3")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "olmo"}))

    result = CliRunner().invoke(app, ["info", str(tmp_path)])

    assert result.exit_code == 2
    assert "needs a package that is not installed" in result.stderr
