"""Measures what next() costs the training's own thread, above all with the GIL held.

    python bench/next_time.py PHOTOS [--samples N] [--batch-size B] [--steps S]

PHOTOS is a folder of images with one folder for each class. Its files are listed over and over,
each time as Python objects of their own, so that they are as cold as those of a large dataset.
"after a step" means that next() begins when the threads have made all that they may make ahead:
batches are there, and the processor's caches hold other things. "at once" means that next() follows
on next(), and waits.

Prints a table, and under it the configuration as one JSON line. "CPU" is the processor's time in
next(), "GIL" that part of it in which the thread held the GIL, and "sampler" what torch's
RandomSampler and BatchSampler take of that, as measured just before.
"""

import argparse
import json
import statistics
import time
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch.utils.data import BatchSampler, RandomSampler
from torchvision.datasets import ImageFolder

from headrace import DataLoader
from headrace._core import time_without_gil
from headrace.bench_run import environment
from headrace.folder_arguments import open_folder
from headrace.route import decide

_PAUSE_S = 0.05


def many(folder: ImageFolder, count: int) -> list[tuple[str, int]]:
    """`count` samples, each with a path of its own."""
    known = [(path.encode(), label) for path, label in folder.samples]
    return [(path.decode(), label) for path, label in (known * -(-count // len(known)))[:count]]


def let_threads_finish(loader: Any) -> None:
    """As long as a training step would, so that prefetched batches are ready."""
    before = -1
    while (now := loader.stats()["stages"]["transform"]["items"]) != before:
        before = now
        time.sleep(_PAUSE_S)


def thread_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID)


def measure(folder: ImageFolder, options: dict[str, Any], steps: int, pause: bool) -> list[Any]:
    """For each step the milliseconds (with the GIL, in all, of the sampler)."""
    loader = DataLoader(folder, shuffle=True, **options)
    if (explanation := decide(loader)[0]).culprit is not None:
        raise SystemExit(f"this measures headrace's own path. {explanation}")
    sampler = iter(BatchSampler(RandomSampler(folder), options["batch_size"], drop_last=False))
    iterator = iter(loader)
    for _ in range(3):
        next(iterator), next(sampler)
    times = []
    for _ in range(steps):
        if pause:
            let_threads_finish(loader)
        begin = thread_ns()
        next(sampler)
        sampled = thread_ns()
        outside = time_without_gil()
        started = thread_ns()
        batch = next(iterator)
        total = thread_ns() - started
        with_gil = total - (time_without_gil() - outside)
        del batch
        times.append((with_gil / 1e6, total / 1e6, (sampled - begin) / 1e6))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos")
    parser.add_argument("--samples", type=int, default=1_000_000, help="default: 1000000")
    parser.add_argument("--batch-size", type=int, default=256, help="default: 256")
    parser.add_argument("--steps", type=int, default=25, help="default: 25")
    parser.add_argument("--num-workers", type=int, nargs="*", default=[0, 2])
    arguments = parser.parse_args()

    folder = open_folder(str(arguments.photos), "v1", "train")
    folder.samples = many(folder, arguments.samples)
    table = Table(box=box.MARKDOWN, title="medians, in milliseconds")
    for name in ("num_workers", "next() comes"):
        table.add_column(name, no_wrap=True)
    for name in ("GIL", "90 % below", "CPU", "sampler"):
        table.add_column(name, justify="right")
    for workers in arguments.num_workers:
        options = {"batch_size": arguments.batch_size, "num_workers": workers}
        for pause in (True, False):
            times = measure(folder, options, arguments.steps, pause)
            with_gil, total, sampler = (list(column) for column in zip(*times, strict=True))
            tenth = statistics.quantiles(with_gil, n=10)[-1]
            medians = [statistics.median(values) for values in (with_gil, total, sampler)]
            figures = [medians[0], tenth, *medians[1:]]
            name = "after a step" if pause else "at once"
            table.add_row(str(workers), name, *(f"{figure:.3f}" for figure in figures))
    Console().print(table)
    configuration = {
        "batch_size": arguments.batch_size,
        "samples": arguments.samples,
        "steps": arguments.steps,
        "torch_threads": torch.get_num_threads(),
    }
    print(json.dumps(configuration | environment(cold=False)))


if __name__ == "__main__":
    main()
