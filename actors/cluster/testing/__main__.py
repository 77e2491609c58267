"""Simulate clusters: python -m kvactors.actors.cluster.testing --seeds 1..10000"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from kvactors.actors.cluster.testing.faults import FAULTS, STEPS
from kvactors.actors.cluster.testing.workload import Outcome, run_seed


def main() -> int:
    """Status 1 if anything did not hold; `--log` shows what happened in each seed that broke."""
    parser = argparse.ArgumentParser(prog="python -m kvactors.actors.cluster.testing")
    parser.add_argument("--seeds", default="1..1000", help="first..last, or one")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--restored", action="store_true", help="over stores that were restored")
    parser.add_argument("--log", action="store_true", help="the story of a seed that broke")
    args = parser.parse_args()
    first, _, last = args.seeds.partition("..")
    seeds = range(int(first), int(last or first) + 1)
    begin, answers, broken = time.monotonic(), 0, 0
    letters, struck, reached = Counter[str](), Counter[str](), Counter[str]()
    for outcome in _run(seeds, args.jobs, partial(run_seed, restored=args.restored)):
        answers += outcome.answers
        letters += outcome.letters
        struck += outcome.struck
        reached += outcome.reached
        if outcome.broken:
            broken += 1
            print(*(outcome.log if args.log else ()), sep="\n")
            print(f"seed {outcome.seed}:", *outcome.broken, sep="\n    ", flush=True)
    seconds = time.monotonic() - begin
    print(f"{len(seeds)} seeds, {answers} answers, {broken} broken, {seconds:.1f} s")
    print("messages:", ", ".join(f"{count} {what}" for what, count in letters.most_common()))
    print("faults:", ", ".join(f"{struck[fault]} {fault}" for fault in FAULTS))
    there = sum(struck[f"at {step}"] for step in STEPS)
    never = [step for step in STEPS if not reached[step]]
    print(f"{there} of them at one of {len(STEPS)} steps; never reached: {never or 'none'}")
    return 1 if broken else 0


def _run(seeds: range, jobs: int, run: Callable[[int], Outcome]) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run, seeds, chunksize=50)


if __name__ == "__main__":
    sys.exit(main())
