"""Times torch's DataLoader and headrace's on a folder of images, after comparing their batches.

Runs of all configurations alternate in one process, so that what else the machine does meets all of
them. Exit code 0: measured. 2: nothing was measured, because the batches differ, headrace would
have used torch, or the call was wrong.
"""

import argparse
import json
import os
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch.utils.data import Subset

from headrace import bench_report, bench_run
from headrace.bench_run import Configuration, Run, Workload
from headrace.cli import CommandError
from headrace.folder_arguments import add_folder_arguments, count, open_folder
from headrace.loader import DataLoader
from headrace.verify import Comparison

SUMMARY = "time torch's DataLoader and headrace's on a folder of images"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what `headrace bench` takes."""
    cores = len(os.sched_getaffinity(0))
    add = parser.add_argument
    add_folder_arguments(parser)
    add("--images", type=count(1), default=2000, metavar="N", help="a run (default: 2000)")
    add("--runs", type=count(1), default=5, metavar="R", help="of each configuration (default: 5)")
    add("--batch-size", type=count(1), default=64, metavar="B", help="default: 64")
    add(
        "--num-workers",
        type=_list_of(0),
        default=sorted({0, 1, cores, 2 * cores}),
        metavar="N,N,...",
        help="torch's worker processes (default: 0, 1, the cores, twice the cores)",
    )
    add(
        "--threads",
        type=_list_of(1),
        default=sorted({1, cores}),
        metavar="T,T,...",
        help="headrace's threads (default: 1, the cores)",
    )
    add("--cold", action="store_true", help="drop the files from the page cache before each run")
    add(
        "--train",
        action="store_true",
        help="with a training step on the CPU beside the loader, and what the loader slows it by",
    )
    add("--json", type=Path, metavar="FILE", help="write the results as a list")
    add("--plot", type=Path, metavar="FILE.png", help="draw them")


def run(arguments: argparse.Namespace) -> int:
    """Carries out `headrace bench`.

    Raises:
        CommandError: nothing was measured.
    """
    _check_outputs(arguments)
    folder = open_folder(
        arguments.directory, arguments.api, arguments.transform, arguments.all_files
    )
    workload = Workload(
        dataset=_evenly(folder, arguments.images),
        images=arguments.images,
        batch_size=arguments.batch_size,
        cold=arguments.cold,
        train=arguments.train,
        classes=len(folder.classes),
    )
    configurations = [
        *(Configuration("torch", workers, None) for workers in arguments.num_workers),
        *(
            Configuration("headrace", max(arguments.num_workers), threads)
            for threads in arguments.threads
        ),
    ]
    console = Console(stderr=True)
    # More workers than cores are part of the sweep.
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    compared = _compare(workload, max(arguments.num_workers))
    console.print(f"{compared}; measuring", highlight=False)
    runs = _measure(workload, configurations, arguments.runs, console)
    step_alone_ms = bench_run.step_alone_ms(workload) if workload.train else None
    environment = bench_run.environment(arguments.cold)
    results = [
        _result(configuration, found, workload, step_alone_ms) | {"environment": environment}
        for configuration, found in runs.items()
    ]
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    if arguments.plot is not None:
        bench_report.plot(results, arguments.plot)
    bench_report.print_table(results, f"{arguments.transform}, {arguments.directory}")
    return 0


def _check_outputs(arguments: argparse.Namespace) -> None:
    """Before anything is measured, since it would be lost."""
    if arguments.plot is not None:
        bench_report.need_matplotlib()
        if arguments.plot.suffix != ".png":
            raise CommandError(f"--plot writes PNG files: name it {arguments.plot}.png")
    for file in (arguments.json, arguments.plot):
        try:
            if file is not None:
                file.open("ab").close()
        except OSError as error:
            raise CommandError(f"{file} cannot be written: {error.strerror}") from error


def _evenly(folder: Any, images: int) -> Subset[Any]:
    stride = -(-len(folder) // images)
    return Subset(folder, range(0, len(folder), stride))


def _compare(workload: Workload, workers: int) -> str:
    """Compares one epoch, and says so."""
    start = torch.Generator().manual_seed(0).get_state()
    options: dict[str, Any] = {"shuffle": True, "num_workers": workers}
    with torch.random.fork_rng(devices=[]):
        comparison = Comparison(
            torch.utils.data.DataLoader(workload.dataset, workload.batch_size, **options),
            DataLoader(workload.dataset, workload.batch_size, **options),
            start,
        )
        difference = comparison.run(1)
    if difference is not None:
        raise CommandError(f"not measured, since the batches differ. {difference}")
    return comparison.summary()


def _measure(
    workload: Workload,
    configurations: list[Configuration],
    rounds: int,
    console: Console,
) -> dict[Configuration, list[Run]]:
    runs: dict[Configuration, list[Run]] = {}
    with Progress(
        console=console, auto_refresh=False, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("measuring", total=rounds * len(configurations))
        for _ in range(rounds):
            for configuration in configurations:
                found = bench_run.measure(workload, configuration)
                runs.setdefault(configuration, []).append(found)
                progress.update(task, advance=1, refresh=True)
    return runs


def _result(
    configuration: Configuration,
    runs: list[Run],
    workload: Workload,
    step_alone_ms: float | None,
) -> dict[str, Any]:
    def median(values: list[float]) -> float:
        return round(statistics.median(values), 4)

    rates = [run.images / run.seconds for run in runs]
    result: dict[str, Any] = {
        "system": configuration.system,
        "num_workers": configuration.num_workers,
        "threads": configuration.threads,
        "batch_size": workload.batch_size,
        "images": runs[0].images,
        "images_per_s": median(rates),
        "images_per_s_min": round(min(rates), 4),
        "images_per_s_max": round(max(rates), 4),
        "mb_per_s": median([run.file_bytes / 1e6 / run.seconds for run in runs]),
        "first_batch_s": median([run.first_batch_s for run in runs]),
        "cpu_s_per_1000_images": median([run.cpu_s * 1000 / run.images for run in runs]),
        "consumer_wait_share": median([run.wait_s / run.seconds for run in runs]),
        "peak_memory_mb": round(bench_run.peak_memory_mb(workload, configuration), 1),
        "reader": runs[-1].stats.get("reader"),
        "stages": {
            name: {
                "busy_ms_per_image": round(stage["busy_ns"] / 1e6 / max(1, stage["items"]), 4),
                "waiting_ms_per_image": round(
                    stage["waiting_ns"] / 1e6 / max(1, stage["items"]), 4
                ),
            }
            for name, stage in runs[-1].stats.get("stages", {}).items()
        },
    }
    if step_alone_ms is not None:
        step_ms = median([run.step_ms for run in runs])
        result |= {
            "step_ms": step_ms,
            "step_alone_ms": round(step_alone_ms, 4),
            "step_slowdown": round(step_ms / step_alone_ms, 4),
        }
    return result


def _list_of(minimum: int) -> Callable[[str], list[int]]:
    parse = count(minimum)

    def parse_list(text: str) -> list[int]:
        return sorted({parse(part) for part in text.split(",")})

    parse_list.__name__ = "list of whole numbers"  # argparse names it in its message
    return parse_list
