"""`kvactors demo`: its plan, its JSON, and that two processes really take part."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvactors.actors.frontends.cli.demo import Ended, run_demo
from kvactors.actors.frontends.demo.plan import plan_demo
from kvactors.core.model.worlds.world import UNKNOWN
from kvactors.persistence.store.store import Store

DEMO = [sys.executable, "-P", "-m", "kvactors.actors.cli", "demo"]
KEYS = {
    "agent", "question", "answer", "expected", "right", "cache", "reused_tokens",
    "prefilled_tokens", "ttft_cold_ms", "ttft_warm_ms",
}  # fmt: skip
ENTRY = dict.fromkeys(KEYS, 1) | dict.fromkeys(("agent", "question", "answer", "expected"), "x")
ENTRY["cache"] = "cold"


def strangers(count: int) -> int:
    return sum(agent.expected == UNKNOWN for agent in plan_demo(count))


def test_a_demo_asks_each_agent_one_question_and_two_or_more_what_others_were_told() -> None:
    assert [strangers(count) for count in (1, 2, 3, 5, 6, 12)] == [0, 1, 2, 2, 2, 4]
    assert len({agent.agent_id for agent in plan_demo(300)}) == 300


def test_a_demo_is_the_same_in_every_process() -> None:
    code = "from kvactors.actors.frontends.demo.plan import plan_demo; print(plan_demo(4))"

    elsewhere = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "77"},
    )

    assert elsewhere.stdout.strip() == str(plan_demo(4))


def test_a_stranger_was_never_told_what_it_is_asked() -> None:
    for agent in plan_demo(30):
        if agent.expected == UNKNOWN:
            key = agent.question.removesuffix("?").split()[-1]
            others = [a for a in plan_demo(30) if a.agent_id != agent.agent_id]
            assert any(key in " ".join(other.turns) for other in others)


def test_an_agent_that_was_not_warm_makes_the_status_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = Ended(1, json.dumps([ENTRY]))

    status = run_demo(1, None, "default", as_json=False, run=lambda *_: ended)

    assert status == 1
    assert "0 of 1 agents warm" in capsys.readouterr().out


def test_a_trace_that_cannot_be_written_any_more_takes_no_table_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(phase: str, _agents: int, _store: Path, _model: str, trace: Path | None) -> Ended:
        assert trace is not None
        about = {"began_at": 0, "dropped_events": 0}
        trace.write_text(json.dumps({"traceEvents": [], "otherData": about}))
        return Ended(1, json.dumps([ENTRY]))

    with pytest.raises(FileNotFoundError):
        run_demo(1, None, "default", tmp_path / "gone" / "x", as_json=False, run=run)

    assert "0 of 1 agents warm" in capsys.readouterr().out


@pytest.mark.slow
def test_a_demo_prints_one_json_object_and_a_second_one_starts_afresh(tmp_path: Path) -> None:
    command = [*DEMO, "--agents", "3", "--json", "--store", str(tmp_path)]

    first = subprocess.run(command, capture_output=True, text=True, check=True)
    second = subprocess.run(command, capture_output=True, text=True, check=True)

    found = json.loads(first.stdout)
    assert found["model"] == "default"
    assert [set(entry) for entry in found["agents"]] == [KEYS] * 3
    assert {entry["cache"] for entry in found["agents"]} == {"warm"}
    assert all(entry["reused_tokens"] > 300 for entry in found["agents"])
    assert all(entry["prefilled_tokens"] < 32 for entry in found["agents"])
    again = json.loads(second.stdout)
    for before, after in zip(found["agents"], again["agents"], strict=True):
        assert {k: v for k, v in before.items() if "ttft" not in k} == {
            k: v for k, v in after.items() if "ttft" not in k
        }
    assert "forgotten first" in second.stderr
    store = Store(tmp_path)
    assert len(store.agents()) == 3
    store.close()


@pytest.mark.slow
def test_ctrl_c_ends_a_demo_with_130_and_without_a_traceback(tmp_path: Path) -> None:
    command = [*DEMO, "--agents", "2", "--store", str(tmp_path)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        os.killpg(process.pid, signal.SIGINT)
        _, rest = process.communicate(timeout=60)

    assert "told their facts" in said
    assert process.returncode == 130
    assert "Traceback" not in rest
