"""The results of a benchmark as a table and as a picture."""

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from headrace.cli import CommandError

Result = dict[str, Any]


def label(result: Result) -> str:
    """A configuration in a few words."""
    noun, count = "thread", result["threads"]
    if result["system"] == "torch":
        noun, count = "worker", result["num_workers"]
    return f"{result['system']}, {count} {noun}{'' if count == 1 else 's'}"


def print_table(results: list[Result], title: str) -> None:
    """Prints the results, as Markdown, with the ratio to torch's best."""
    base = max(r["images_per_s"] for r in results if r["system"] == "torch")
    table = Table(box=box.MARKDOWN)
    table.add_column(title)
    columns = [
        "images/s",
        "spread",
        "x torch's best",
        "MB/s",
        "first batch",
        "CPU s/1,000",
        "peak MB",
    ]
    if "step_ms" in results[0]:
        columns += ["waiting", "step slower by"]
    for column in columns:
        table.add_column(column, justify="right")
    for r in results:
        cells = [
            label(r),
            f"{r['images_per_s']:,.0f}",
            f"{r['images_per_s_min']:,.0f}-{r['images_per_s_max']:,.0f}",
            f"{r['images_per_s'] / base:.2f}",
            f"{r['mb_per_s']:,.0f}",
            f"{r['first_batch_s'] * 1e3:,.0f} ms",
            f"{r['cpu_s_per_1000_images']:.2f}",
            f"{r['peak_memory_mb']:,.0f}",
        ]
        if "step_ms" in r:
            cells += [
                f"{r['consumer_wait_share']:.0%}",
                f"{r['step_slowdown'] - 1:.0%}",
            ]
        table.add_row(*cells)
    console = Console(highlight=False, width=200)
    console.print(table)
    for r in results:
        if r["stages"]:
            stages = "; ".join(
                f"{name} {stage['busy_ms_per_image']:.3f} ms busy"
                + (
                    f", {stage['waiting_ms_per_image']:.3f} waiting"
                    if stage["waiting_ms_per_image"]
                    else ""
                )
                for name, stage in r["stages"].items()
            )
            console.print(f"{label(r)}: {stages} an image; reader {r['reader']}")
    e = results[0]["environment"]
    console.print(
        f"{e['cores']} cores of {e['processor']}, {e['page_cache']} page cache, batches of "
        f"{results[0]['batch_size']}, {results[0]['images']} images a run, medians; headrace "
        f"{e['headrace']}, torch {e['torch']}, torchvision {e['torchvision']}, Pillow "
        f"{e['pillow']}, Python {e['python']}"
    )


def need_matplotlib() -> None:
    """Raises CommandError where it is missing: before anything is measured."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise CommandError("--plot needs matplotlib: pip install matplotlib") from error


def plot(results: list[Result], file: Path) -> None:
    """Draws images/s of each configuration, with the spread of its runs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.5 * len(results) + 1.5), layout="constrained")
    axes = figure.add_subplot()
    rates = [r["images_per_s"] for r in results]
    below = [r["images_per_s"] - r["images_per_s_min"] for r in results]
    above = [r["images_per_s_max"] - r["images_per_s"] for r in results]
    colors = ["#9aa5b1" if r["system"] == "torch" else "#1f77b4" for r in results]
    axes.barh([label(r) for r in results], rates, xerr=[below, above], color=colors, capsize=3)
    axes.invert_yaxis()
    axes.set_xlabel("images/s (median; lines: slowest and fastest run)")
    axes.set_title(f"{results[0]['environment']['cores']} cores")
    figure.savefig(file)
