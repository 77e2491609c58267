"""`kvactors export` and `kvactors import`: files in and out, most of it without a model."""

import json
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache
from safetensors import safe_open
from store_saves import put
from typer.testing import CliRunner

from kvactors.actors import AgentNotStored, AgentSystem, ImportRejected, Sampling
from kvactors.actors.frontends.cli.app import app
from kvactors.core.testing.models import tiny_llama
from kvactors.persistence import Save, Store
from kvactors.persistence.formats.archive import export_archive

runner = CliRunner()
SHORT = Sampling(max_tokens=4)
WAIT = 60


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with alice, who has KV under the default model, and tom, of a random one."""
    path = tmp_path_factory.mktemp("cli") / "store"
    with AgentSystem("default", store=path) as system:
        system.spawn("alice").ask("My cat is called Rex.", sampling=SHORT).get(timeout=WAIT)
    with AgentSystem(tiny_llama(), store=path) as system:
        system.spawn("tom").ask("hello", sampling=SHORT).get(timeout=WAIT)
    return path


def run(*arguments: object) -> tuple[int, str, str]:
    result = runner.invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


def one_line(status: int, err: str) -> str:
    assert status == 2
    assert "Traceback" not in err
    (line,) = err.strip().splitlines()
    assert line.startswith("error: ")
    return line


def test_exports_and_archives_load_no_model_library(store: Path, tmp_path: Path) -> None:
    code = f"""
import sys
from kvactors.actors.cli import app
def run(*arguments):
    app([*arguments, '--store', {str(store)!r}], standalone_mode=False)
for form in ('archive', 'q4-flat', 'q4-blocks', 'fp16-flat', 'mlx-lm'):
    run('export', 'alice', {str(tmp_path)!r} + f'/{{form}}.safetensors', '--format', form,
        '--model', 'default')
run('import', {str(tmp_path)!r} + '/archive.safetensors', '--agent', 'moved')
loaded = {{'mlx', 'mlx_lm', 'transformers'}} & set(sys.modules)
sys.exit(str(loaded) if loaded else 0)
"""

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.splitlines()) == 6
    assert (
        run("inspect", "moved", "--store", store)[1] == run("inspect", "alice", "--store", store)[1]
    )


def test_an_archive_moves_an_agent_to_another_store(store: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "alice.kva", tmp_path / "other"

    exported = run("export", "alice", file, "--store", store)
    imported = run("import", file, "--agent", "bob", "--store", other)

    assert (exported[0], imported[0]) == (0, 0)
    assert f"alice: {file}, archive, " in exported[1]
    assert f"bob: imported into {other}" in imported[1]
    with AgentSystem("default", store=other) as system:
        reply = system.spawn("bob").ask("What is it called?", sampling=SHORT).get(timeout=WAIT)
    assert reply.cache == "warm"


def told(**changes: Any) -> dict[str, Any]:
    """A record of one turn, but for the `changes` of it or of its turn."""
    turn = {"role": "user", "text": "hello", "tokens": b"\1\0\0\0", "raw": False, "finish": None}
    record = {"version": 2, "tokenizer": "another", "turns": [turn]}
    for name, value in changes.items():
        (turn if name in turn else record)[name] = value
    return record


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"version": 3}, "a newer kvactors wrote it, in version 3: upgrade"),
        ({"version": 2}, "records of another form"),
        (told(version=0), "records of another form"),
        (told(keep=7), "records of another form"),
        (told(text=5), "records of another form"),
        (told(raw=None), "records of another form"),
        (told(tokens=b"123"), "records of another form"),
    ],
)
def test_an_archive_whose_turns_cannot_be_read_is_refused_and_nothing_is_stored(
    tmp_path: Path, record: dict[str, Any], told: str
) -> None:
    file, other = tmp_path / "strange.kva", tmp_path / "other"
    strange = Store(tmp_path / "store")
    put(strange, Save("strange", (record,), None, ()))
    export_archive(strange, "strange", file)
    strange.close()

    code, _, said = run("import", file, "--agent", "bob", "--store", other)
    assert told in one_line(code, said)
    with AgentSystem(tiny_llama(), store=other) as system:
        with pytest.raises(ImportRejected, match=told):
            system.import_agent(file, "bob")
        assert system.agents() == []
        with pytest.raises(AgentNotStored):
            system.forget("bob")


def test_kv_is_imported_by_a_model_and_found_warm(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "alice.safetensors"

    exported = run(
        "export", "alice", file, "--format", "q4-flat", "--model", "default", "--store", store
    )
    imported = run("import", file, "--agent", "copy", "--store", store)

    assert (exported[0], imported[0]) == (0, 0), imported[2]
    with AgentSystem("default", store=store) as system:
        copy, alice = system.spawn("copy"), system.spawn("alice")
        assert copy.transcript().token_ids == alice.transcript().token_ids
        assert copy.ask("And now?", sampling=SHORT).get(timeout=WAIT).cache == "warm"


def test_without_a_tokenizer_the_text_is_that_of_the_turns(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "tom.safetensors"

    run("export", "tom", file, "--format", "q4-flat", "--model", "tiny", "--store", store)

    with safe_open(file, framework="numpy") as opened:
        metadata = opened.metadata()
    assert metadata["prompt_text"].startswith("hello")
    assert metadata["model_id"] == "tiny"
    assert len(json.loads(metadata["token_sequence"])) == 9


def test_an_agent_that_was_begun_anew_is_exported_as_it_is_now(store: Path, tmp_path: Path) -> None:
    file, copy = tmp_path / "tom.safetensors", tmp_path / "store"
    shutil.copytree(store, copy)
    with closing(Store(copy)) as opened:
        (*_, last) = records = opened.read_ledger("tom") or ()
        turns = [turn for record in records for turn in record["turns"]]
        other = {**last, "tokenizer": "another", "turns": turns[:1], "system": "Old."}
        now = {**last, "keep": 0, "system": "New.", "turns": turns}
        put(opened, Save("tom", (other, now), None, ()))

    done = run("export", "tom", file, "--format", "q4-flat", "--model", "tiny", "--store", copy)

    assert done[0] == 0, done[2]
    with safe_open(file, framework="numpy") as exported:
        assert exported.metadata()["prompt_text"].startswith("New.hello")


def test_token_ids_come_from_a_file_and_are_checked(store: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    file = tmp_path / "alice.safetensors"
    run("export", "alice", file, "--format", "q4-blocks", "--model", "default", "--store", store)
    command = ["import", file, "--agent", "told", "--tokens", tokens, "--store", store]

    for text, expected in (
        ("[1, 2", "is no JSON"),
        ('{"a": 1}', "no JSON list"),
        ("[1, 2, 99999999]", "tokens[2]"),
    ):
        tokens.write_text(text)
        status, _, err = run(*command)
        assert expected in one_line(status, err)


def test_kv_that_names_no_model_is_imported_when_it_is_said_to_be_of_this_one(
    store: Path, tmp_path: Path
) -> None:
    named, file = tmp_path / "named.safetensors", tmp_path / "bare.safetensors"
    tokens = tmp_path / "ids.json"
    run("export", "alice", named, "--format", "mlx-lm", "--model", "default", "--store", store)
    cache, metadata = load_prompt_cache(str(named), return_metadata=True)
    save_prompt_cache(str(file), cache)
    tokens.write_text(metadata["token_sequence"])
    command = ["import", file, "--agent", "bare", "--tokens", tokens]

    status, _, err = run(*command, "--store", store)
    imported = run(*command, "--of-this-model", "--store", store)

    assert "--of-this-model" in one_line(status, err)
    assert imported[0] == 0, imported[2]
    assert "bare" in run("agents", "--store", store)[1]


def test_what_says_nothing_of_an_archive_is_refused(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "alice.kva"
    run("export", "alice", file, "--store", store)

    for option in (["--tokens", tmp_path / "ids"], ["--model", "default"], ["--of-this-model"]):
        status, _, err = run("import", file, "--agent", "bob", *option, "--store", store)
        assert one_line(status, err).startswith(f"error: {option[0]}: {file} is an archive")


def test_what_goes_wrong_is_one_line_and_status_2(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "alice.kva"
    run("export", "alice", file, "--store", store)
    where = ("--store", store)

    for command, expected in (
        (["export", "alice", file, *where], "exists"),
        (["export", "nobody", tmp_path / "n", *where], "no agent 'nobody'"),
        (["export", "alice", tmp_path / "n", "--store", tmp_path / "none"], "no agents are stored"),
        (
            [
                "export",
                "alice",
                tmp_path / "n",
                "--format",
                "q4-flat",
                "--model",
                "default",
                "--fingerprint",
                "x",
                *where,
            ],
            "no KV of 'alice'",
        ),
        (["import", file, "--agent", "alice", *where], "agent 'alice' exists"),
        (["import", tmp_path / "missing", "--agent", "bob", *where], "No such file"),
        (["import", file, "--agent", "", *where], "1 to 255 characters"),
        (["import", store / "store.lock", "--agent", "bob", *where], "too short for a header"),
    ):
        status, _, err = run(*command)
        assert expected in one_line(status, err)
    assert not (tmp_path / "n").exists()
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("form", ["q4-flat", "q4-blocks", "fp16-flat", "mlx-lm"])
def test_kv_is_exported_under_no_name_but_one_that_was_said(
    store: Path, tmp_path: Path, form: str
) -> None:
    file = tmp_path / "tom.safetensors"

    status, _, err = run("export", "tom", file, "--format", form, "--store", store)

    assert "say --model" in one_line(status, err)
    assert not file.exists()


def test_an_agent_of_several_models_is_exported_by_fingerprint(store: Path, tmp_path: Path) -> None:
    with AgentSystem(tiny_llama(seed=1), store=store, model_name="one") as system:
        first = system.info.fingerprint
        system.spawn("both").ask("hello", sampling=SHORT).get(timeout=WAIT)
    with AgentSystem(tiny_llama(seed=2), store=store, model_name="two") as system:
        second = system.info.fingerprint
        system.spawn("both").ask("hello", sampling=SHORT).get(timeout=WAIT)
    file, where = tmp_path / "both", ("--store", store)
    command = ["export", "both", file, "--format", "q4-flat", "--model", "two", *where]

    status, _, err = run(*command)
    named = run(*command, "--fingerprint", second[:8])

    assert first in one_line(status, err)
    assert second in err
    assert named[0] == 0
    with safe_open(tmp_path / "both", framework="numpy") as opened:
        assert opened.metadata()["fingerprint"] == second
