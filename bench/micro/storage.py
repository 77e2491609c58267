"""What the store costs: bytes written, speed against the disk's own, syncs, reopening.

    python -m kvactors.bench.micro.storage [--quick] [--folder .] [--plot out.png]

Regime: the store alone, without a model; KV of random bytes, 2,304 a token (8 layers of 4
heads of 64 at 4 bits). Files are dropped from the page cache before they are read, where the
system can do that. The disk's own rate is that of one file, written, synced, and read into memory
of its size, between the store's runs. Encryption is AES-256-GCM on one core.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from kvactors.bench.disk import (
    FINGERPRINT,
    UnsyncedFiles,
    commit_all,
    disk_run,
    drop_from_cache,
    fill,
    save_one,
    seconds_of,
)
from kvactors.bench.report import print_json, print_table
from kvactors.core.engine.hot_cache import ranges_to_save
from kvactors.persistence import Save, Segment, Store
from kvactors.persistence.testing.doubles import CountingFiles, example_segment

__all__ = ["TOKEN_BYTES", "main", "store_run"]

TOKEN_BYTES = 2304
KEY = bytes(range(32))
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print tables and a JSON line, draw if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, few runs")
    parser.add_argument("--folder", type=Path, help="on the disk to measure [temporary]")
    parser.add_argument("--plot", type=Path, help="write a PNG here (needs kvactors[plot])")
    options = parser.parse_args(arguments)
    quick = options.quick

    with tempfile.TemporaryDirectory(prefix="kvactors-storage-", dir=options.folder) as folder:
        root = Path(folder)
        written = [written_row(root, tokens, 20 if quick else 100) for tokens in (20, 50, 120)]
        speed = speed_rows(root, 1024 if quick else 16384, 3 if quick else 7)
        syncs = [sync_row(root, agents, 5 if quick else 40) for agents in (1, 32)]
        opened = open_row(root, 200 if quick else 10_000)

    _show("Bytes written in a life of many turns", written)
    _show("Speed of one agent's KV, medians", speed)
    _show("Small turns saved together (50 tokens each)", syncs)
    _show("A store with many agents", [opened])
    found = {"written": written, "speed": speed, "syncs": syncs, "open": opened}
    if options.plot is not None:
        draw(found, options.plot)
    print_json("storage", rows=found)


def _show(title: str, rows: Sequence[Row]) -> None:
    columns = list(rows[0])
    print_table(
        title, [name.replace("_", " ") for name in columns], [list(r.values()) for r in rows]
    )


def _segments(ranges: Sequence[tuple[int, int]], seed: int) -> tuple[Segment, ...]:
    return tuple(example_segment(*part, seed=seed, token_bytes=TOKEN_BYTES) for part in ranges)


def written_row(root: Path, tokens: int, turns: int) -> Row:
    """Bytes that `turns` turns of `tokens` tokens write below `root`, and what is kept in the
    end."""
    store = Store(root / f"written-{tokens}", files=UnsyncedFiles())
    for turn in range(turns):
        ranges = ranges_to_save(turn * tokens, (turn + 1) * tokens)
        record = {"ids": bytes(4 * tokens)}
        commit_all(store, [Save("a", (record,), FINGERPRINT, _segments(ranges, tokens))])
    kept = store.kv_size
    store.close()
    return {
        "tokens_a_turn": tokens,
        "turns": turns,
        "written_mb": store.bytes_written / 1e6,
        "kept_mb": kept / 1e6,
        "written_over_kept": store.bytes_written / kept,
        "written_over_new": store.bytes_written / (turns * tokens * TOKEN_BYTES),
    }


def speed_rows(root: Path, tokens: int, runs: int) -> list[Row]:
    """GB/s, of `runs` with the KV of `tokens` below `root`, of the disk, of the store, and of an
    encrypted store, taken in turns."""
    subjects: dict[str, Callable[[int], tuple[float, float]]] = {
        "disk": lambda run: disk_run(root / f"disk-{run}", tokens * TOKEN_BYTES),
        "store": lambda run: store_run(root / f"plain-{run}", tokens, run, None),
        "encrypted": lambda run: store_run(root / f"sealed-{run}", tokens, run, KEY),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in subjects}
    for run in range(runs):
        for name, measure in subjects.items():
            found[name].append(measure(run))
    size = tokens * TOKEN_BYTES / 1e9
    rows = []
    for name, times in found.items():
        save, restore = (size / median(column) for column in zip(*times, strict=True))
        rows.append({"what": name, "mb": size * 1e3, "save_gb_s": save, "restore_gb_s": restore})
    for row in rows:
        for part in ("save", "restore"):
            row[f"{part}_of_disk"] = row[f"{part}_gb_s"] / rows[0][f"{part}_gb_s"]
    return rows


def store_run(root: Path, tokens: int, seed: int, key: bytes | None) -> tuple[float, float]:
    """Seconds to save one agent with KV of `tokens`, random by `seed`, below `root`, encrypted if
    there is a `key`, and to read it in a store opened anew."""
    segments = _segments([(0, tokens // 2), (tokens // 2, tokens)], seed)
    store = Store(root, encryption_key=key)
    written = seconds_of(lambda: commit_all(store, [Save("a", ({},), FINGERPRINT, segments)]))
    store.close()
    for path in root.rglob("*.*"):
        drop_from_cache(path)
    again = Store(root, encryption_key=key)
    read = seconds_of(lambda: again.read_kv("a", FINGERPRINT))
    assert again.kv_extent("a", FINGERPRINT) == tokens
    again.forget("a")
    again.close()
    return written, read


def sync_row(root: Path, agents: int, groups: int) -> Row:
    """Turns and syncs a second, over `groups`, when `agents` agents save below `root` at the same
    time."""
    files = CountingFiles()
    store = Store(root / f"syncs-{agents}", files=files)

    def group(turn: int) -> list[Save]:
        ranges = [(turn * 50, (turn + 1) * 50)]
        return [
            Save(f"agent {n}", ({"turn": turn},), FINGERPRINT, _segments(ranges, n))
            for n in range(agents)
        ]

    commit_all(store, group(0))
    saves = [group(turn) for turn in range(1, groups + 1)]
    before = files.counts
    begin = time.perf_counter()
    for each in saves:
        commit_all(store, each)
    seconds = time.perf_counter() - begin
    counts = files.counts - before
    store.close()
    syncs = counts["fsync"] + counts["sync"] + counts["sync_dir"]
    turns = agents * groups
    return {
        "agents": agents,
        "turns_s": turns / seconds,
        "syncs_s": syncs / seconds,
        "syncs_a_turn": syncs / turns,
        "ms_a_group": 1e3 * seconds / groups,
    }


def open_row(root: Path, agents: int) -> Row:
    """Seconds to open a store with many agents, to use it, and to list it."""
    path = root / "many"
    fill(path, agents)
    begin = time.perf_counter()
    again = Store(path)
    opened = time.perf_counter() - begin
    restored = seconds_of(lambda: again.read_kv("agent 7", FINGERPRINT))
    saved = save_one(again, agents)
    listed = seconds_of(again.agents)
    again.close()
    return {
        "agents": agents,
        "open_s": opened,
        "first_restore_s": restored,
        "first_save_s": saved,
        "list_s": listed,
    }


def draw(found: dict[str, Any], path: Path) -> None:
    """Three panels as a PNG. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    turns = [str(row["tokens_a_turn"]) for row in found["written"]]
    left.bar(turns, [row["written_over_kept"] for row in found["written"]])
    left.axhline(2, color="grey", linestyle="--")
    left.set(title="bytes written / bytes kept", xlabel="tokens a turn")
    names = [row["what"] for row in found["speed"]]
    places = range(len(names))
    middle.bar(
        [x - 0.2 for x in places], [r["save_gb_s"] for r in found["speed"]], 0.4, label="save"
    )
    middle.bar(
        [x + 0.2 for x in places], [r["restore_gb_s"] for r in found["speed"]], 0.4, label="restore"
    )
    middle.set(title="one agent's KV, GB/s", xticks=places, xticklabels=names)
    middle.legend()
    right.bar(
        [str(row["agents"]) for row in found["syncs"]], [r["turns_s"] for r in found["syncs"]]
    )
    right.set(title="turns saved a second", xlabel="agents saving together")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
