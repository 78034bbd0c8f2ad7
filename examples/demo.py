"""Trains a small network with torch's DataLoader and with headrace's, and compares the two.

    python examples/demo.py [--data FOLDER] [--out FILE.png] ...

Ends with status 1 where one loss differs in one bit, or where headrace left the work to torch.
"""

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import PIL
import torch
import torch.utils.data
import torchvision
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder

import headrace
import make_dataset
import train

BUILD = Path(__file__).resolve().parents[1] / "build"
SEED = 1

console = Console(highlight=False)


class DemoError(Exception):
    """Something that the user should read without a traceback."""


@dataclass(frozen=True)
class Run:
    """One training."""

    name: str
    steps: list[train.Step]

    @property
    def seconds(self) -> float:
        return sum(step.waiting_s + step.training_s for step in self.steps)

    @property
    def images_per_s(self) -> float:
        return sum(step.images for step in self.steps) / self.seconds

    @property
    def first_batch_s(self) -> float:
        return self.steps[0].waiting_s

    @property
    def waiting_share(self) -> float:
        return sum(step.waiting_s for step in self.steps) / self.seconds


def parse_arguments() -> argparse.Namespace:
    def count(text: str) -> int:
        if (value := int(text)) < 1:
            raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
        return value

    parser = argparse.ArgumentParser(
        description="Trains with torch's DataLoader and with headrace's, and compares the two.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="pictures in one subfolder for each class; without it, some are made",
    )
    parser.add_argument("--images", type=count, default=make_dataset.IMAGES, help="use at most")
    parser.add_argument("--epochs", type=count, default=4)
    parser.add_argument("--repeats", type=count, default=3, help="runs of each loader, in turn")
    parser.add_argument("--batch-size", type=count, default=32)
    parser.add_argument("--num-workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, metavar="FILE.png", default=BUILD / "demo.png")
    arguments = parser.parse_args()
    if arguments.num_workers < 0:
        parser.error("--num-workers must not be negative")
    if arguments.out.suffix != ".png":
        parser.error(f"--out must end in .png: {arguments.out}")
    return arguments


# --- data


def open_dataset(folder: Path | None, limit: int) -> Subset:
    """At most `limit` pictures of the folder, evenly picked, and all of them in the page cache."""
    if folder is None:
        folder = BUILD / "demo-data"
        if not folder.exists():
            make_dataset.make_dataset(folder)
    if not folder.is_dir():
        raise DemoError(f"no such folder: {folder}")
    try:
        dataset = ImageFolder(str(folder), train.TRANSFORM)
    except FileNotFoundError as error:
        raise DemoError(
            f"no pictures in {folder}; expected are FOLDER/CLASS/PICTURE.jpg\n({error})"
        ) from None
    stride = -(-len(dataset) // limit)
    chosen = Subset(dataset, range(0, len(dataset), stride))
    for path in paths_of(chosen):
        Path(path).read_bytes()
    return chosen


def paths_of(dataset: Subset) -> list[str]:
    return [dataset.dataset.samples[index][0] for index in dataset.indices]


def broken_pictures(dataset: Subset) -> list[str]:
    broken = []
    for path in paths_of(dataset):
        try:
            dataset.dataset.loader(path)
        except Exception as error:
            broken.append(f"{path}: {error}")
    return broken


# --- the two sides


def run_once(name: str, loader: Any, dataset: Subset, arguments: argparse.Namespace) -> Run:
    classes = len(dataset.dataset.classes)
    with Progress(
        TextColumn("{task.description:24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
        console=console,
        refresh_per_second=4,
    ) as progress:
        task = progress.add_task(name, total=arguments.epochs * len(loader))
        try:
            steps = train.train(
                loader, classes, arguments.epochs, SEED, lambda: progress.advance(task)
            )
            return Run(name, steps)
        except Exception as error:
            if not (broken := broken_pictures(dataset)):
                raise
            listed = "\n".join(broken[:5])
            raise DemoError(
                f"{len(broken)} of {len(dataset)} pictures cannot be read, first:\n{listed}"
            ) from error


def run_all(
    dataset: Subset, arguments: argparse.Namespace
) -> tuple[list[Run], list[Run], dict[str, Any]]:
    """The runs with torch, those with headrace, and the counters of headrace's last."""
    torch_runs, headrace_runs = [], []
    for repeat in range(1, arguments.repeats + 1):
        for loader_class, runs in (
            (torch.utils.data.DataLoader, torch_runs),
            (headrace.DataLoader, headrace_runs),
        ):
            loader = train.make_loader(
                loader_class, dataset, arguments.batch_size, arguments.num_workers
            )
            name = f"{'torch' if runs is torch_runs else 'headrace'}, run {repeat}"
            runs.append(run_once(name, loader, dataset, arguments))
        # Asked after the run, so that the self-check behind the answer counts as waiting.
        explanation = loader.explain() if repeat == 1 or not loader.stats() else None
        if not loader.stats():
            raise DemoError(f"headrace left the work to torch: {explanation}")
    return torch_runs, headrace_runs, loader.stats()


def difference(runs: list[Run]) -> str | None:
    """Where the losses of two runs first differ; None when all their bits are equal."""
    first = runs[0]
    for other in runs[1:]:
        if len(first.steps) != len(other.steps):
            return f"{first.name} has {len(first.steps)} steps, {other.name} {len(other.steps)}"
        for number, (a, b) in enumerate(zip(first.steps, other.steps, strict=True)):
            if a.loss_bits != b.loss_bits:
                return (
                    f"step {number}: {a.loss!r} ({a.loss_bits}) in {first.name}, "
                    f"{b.loss!r} ({b.loss_bits}) in {other.name}"
                )
    return None


# --- what is shown


def median(runs: list[Run], value: Callable[[Run], float]) -> float:
    return statistics.median(map(value, runs))


def typical(runs: list[Run]) -> Run:
    return sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]


def speedup(torch_runs: list[Run], headrace_runs: list[Run]) -> float:
    return median(headrace_runs, lambda run: run.images_per_s) / median(
        torch_runs, lambda run: run.images_per_s
    )


def results_table(torch_runs: list[Run], headrace_runs: list[Run]) -> Table:
    def cell(runs: list[Run], value: Callable[[Run], float], form: str) -> str:
        values = [value(run) for run in runs]
        spread = f"  ({min(values):{form}} to {max(values):{form}})" if len(runs) > 1 else ""
        return f"{statistics.median(values):{form}}{spread}"

    count = len(torch_runs)
    table = Table(
        title=f"Median of {count} runs (least to most)" if count > 1 else "One run each",
        caption="headrace's first run includes its self-check, made once in a process",
    )
    table.add_column("")
    for name in ("torch", "headrace"):
        table.add_column(name, justify="right")
    rows: list[tuple[str, Callable[[Run], float], str]] = [
        ("images/s", lambda run: run.images_per_s, ",.0f"),
        ("time to first batch, ms", lambda run: 1000 * run.first_batch_s, ",.0f"),
        ("time waiting for data", lambda run: run.waiting_share, ".0%"),
        ("whole run, s", lambda run: run.seconds, ".1f"),
    ]
    for title, value, form in rows:
        table.add_row(title, cell(torch_runs, value, form), cell(headrace_runs, value, form))
    for title, place in (("first loss", 0), ("last loss", -1)):
        steps = [runs[0].steps[place] for runs in (torch_runs, headrace_runs)]
        table.add_row(title, *(f"{step.loss:.6f} = 0x{step.loss_bits}" for step in steps))
    return table


def configuration(
    dataset: Subset, arguments: argparse.Namespace, load: float, stats: dict[str, Any]
) -> dict[str, Any]:
    cpu_lines = Path("/proc/cpuinfo").read_text().splitlines()
    sizes = [os.path.getsize(path) for path in paths_of(dataset)]
    return {
        "headrace": headrace.__version__,
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "pillow": PIL.__version__,
        "python": platform.python_version(),
        "cpu": next((line.split(": ")[1] for line in cpu_lines if "model name" in line), "unknown"),
        "cores": len(os.sched_getaffinity(0)),
        "load_average_before": load,
        "images": len(sizes),
        "mean_file_kb": round(statistics.mean(sizes) / 1000),
        "page_cache": "warm",
        "input_pixels": train.IMAGE_SIZE,
        "batch_size": arguments.batch_size,
        "epochs": arguments.epochs,
        "num_workers": arguments.num_workers,
        "persistent_workers": arguments.num_workers > 0,
        "torch_intra_op_threads": torch.get_num_threads(),
        "headrace_threads": stats["threads"],
        "headrace_reader": stats["reader"],
        "samples_left_to_pillow": stats["questions"],
    }


WAITING, TRAINING = "#e8833a", "#2a6f97"


def draw_timeline(axes: Axes, runs: list[Run]) -> None:
    for row, run in enumerate(runs):
        waiting, training, now = [], [], 0.0
        for step in run.steps:
            waiting.append((now, step.waiting_s))
            training.append((now + step.waiting_s, step.training_s))
            now += step.waiting_s + step.training_s
        labels = ("waiting for data", "training") if row == 0 else (None, None)
        axes.broken_barh(waiting, (row - 0.35, 0.7), color=WAITING, lw=0, label=labels[0])
        axes.broken_barh(training, (row - 0.35, 0.7), color=TRAINING, lw=0, label=labels[1])
        axes.text(now, row, f"  {now:.1f} s, {run.waiting_share:.0%} waiting", va="center")
    axes.set_yticks(range(len(runs)), [run.name.split(",")[0] for run in runs])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * max(run.seconds for run in runs))
    axes.set_xlabel("time since the loop began, s")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)


def draw_losses(axes: Axes, runs: list[Run]) -> None:
    styles = ({"color": "#9fd8a4", "lw": 5}, {"color": "black", "lw": 1})
    for run, style in zip(runs, styles, strict=True):
        losses = [step.loss for step in run.steps]
        axes.plot(range(1, len(losses) + 1), losses, label=run.name.split(",")[0], **style)
    axes.set_xlabel("training step")
    axes.set_ylabel("loss, nats")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)


def draw(torch_runs: list[Run], headrace_runs: list[Run], note: str, path: Path) -> None:
    """The typical run of each side: where its time went, and its losses."""
    runs = [typical(torch_runs), typical(headrace_runs)]
    figure = Figure(figsize=(10, 6.5), dpi=120, layout="constrained")
    timeline, losses = figure.subplots(2, 1, height_ratios=(2, 3))
    draw_timeline(timeline, runs)
    draw_losses(losses, runs)
    for axes in (timeline, losses):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"The same {len(runs[0].steps)} losses to the last bit, "
        f"{speedup(torch_runs, headrace_runs):.1f} times the images per second",
        fontsize=14,
        fontweight="bold",
    )
    figure.supxlabel(note, fontsize=8, color="gray")
    figure.savefig(path)


def demo(arguments: argparse.Namespace) -> None:
    try:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(f"there is no place for the picture: {error}") from None
    load = round(os.getloadavg()[0], 2)
    dataset = open_dataset(arguments.data, arguments.images)
    console.print("One line of the training changes:")
    console.print("[red]  - from torch.utils.data import DataLoader")
    console.print("[green]  + from headrace import DataLoader\n")
    torch_runs, headrace_runs, stats = run_all(dataset, arguments)

    if found := difference(torch_runs + headrace_runs):
        raise DemoError(f"the losses differ, first in {found}")
    steps = len(torch_runs[0].steps)
    settings = configuration(dataset, arguments, load, stats)
    console.print(results_table(torch_runs, headrace_runs))
    console.print(f"[bold green]Same losses to the last bit in all {steps} steps of every run.")
    print(json.dumps(settings))
    note = "{cores} cores, num_workers={num_workers}, batch size {batch_size}, {images} JPEGs of "
    note += "{mean_file_kb} kB on average, torch {torch}, {cpu}"
    draw(torch_runs, headrace_runs, note.format(**settings), arguments.out)
    print(f"Picture: {arguments.out}")


def main() -> None:
    try:
        demo(parse_arguments())
    except DemoError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    matplotlib.use("agg")
    main()
