"""Says whether a treatment worked: compares the traces of a training before and after it.

Refuses, without --force, when GPU, world size, batch, dtype, torch or profiler flags differ.
Exit code 0: VERIFIED, the step is shorter, and because the treated part is. 1: any other verdict.
2: not compared.
"""

import argparse
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace import __version__
from headrace.cli import CommandError
from headrace.comparison import VERIFIED, Comparison, compare, differences
from headrace.diagnosis import Run
from headrace.doctor import load_run, write_json
from headrace.trace import KINDS

SUMMARY = "say from traces before and after a treatment whether it worked"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what `headrace compare` takes."""
    add = parser.add_argument
    add("before", metavar="BEFORE", help="a trace, a tar of traces or a directory")
    add("after", metavar="AFTER", help="the same after the treatment")
    add(
        "--treated",
        choices=KINDS[:-1],
        help="the part of the step that was treated (default: the first finding about BEFORE)",
    )
    add("--force", action="store_true", help="compare although the runs differ in other ways")
    add("--json", metavar="FILE", help="write the comparison there too; - : only to stdout")
    add("--plot", metavar="FILE.png", help="draw both steps there")


def run(arguments: argparse.Namespace) -> int:
    """Carries out `headrace compare`; returns 0 for VERIFIED, else 1.

    Raises:
        CommandError: a trace could not be read, or the runs must not be compared.
    """
    before, after = load_run([arguments.before]), load_run([arguments.after])
    different, unknown = differences(before, after)
    if different and not arguments.force:
        raise CommandError(
            f"{arguments.before} and {arguments.after} must not be compared: "
            f"{'; '.join(different)}. Record both alike, or pass --force"
        )
    comparison = compare(before, after, arguments.treated)
    comparison.notes.extend(f"differs: {difference}" for difference in different)
    if unknown:
        comparison.notes.append(f"not recorded, taken for equal: {', '.join(unknown)}")
    if arguments.plot:
        draw(arguments.plot, comparison, before)
    if arguments.json != "-":
        Console().print(render(comparison, before))
    if arguments.json:
        write_json(arguments.json, to_json(comparison))
    return 0 if comparison.verdict == VERIFIED else 1


def to_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain data; changes in percent, times in milliseconds per step."""
    content = {**vars(comparison), "headrace": __version__}
    for name in ("change", "mean_change"):
        content[f"{name}_percent"] = 100 * content.pop(name)
    content["interval_percent"] = [100 * bound for bound in content.pop("interval")]
    content["bottleneck"] = vars(comparison.bottleneck)
    return content


def render(comparison: Comparison, before: Run) -> RenderableType:
    """The comparison for a terminal."""
    names = before.kind_names()
    table = Table(title="ms a step", title_justify="left")
    table.add_column("a step's time")
    for column in ("before", "after", "change"):
        table.add_column(column, justify="right")
    for kind in (*KINDS, "step", "median step"):
        old, new = comparison.before[kind], comparison.after[kind]
        if kind in KINDS and kind not in names:
            continue
        if kind == "step":
            table.add_section()
        mark = " (treated)" if kind == comparison.treated else ""
        table.add_row(names.get(kind, kind) + mark, f"{old:.2f}", f"{new:.2f}", f"{new - old:+.2f}")
    color = "green" if comparison.verdict == VERIFIED else "yellow"
    verdict = Text(f"\n{comparison.verdict}", style=f"bold {color}")
    verdict.append(f": {comparison.reason}", style="not bold")
    lines = [Text(line) for line in _sentences(comparison, names)]
    return Group(table, verdict, *lines, *(Text(f"note: {note}") for note in comparison.notes))


def _sentences(comparison: Comparison, names: dict[str, str]) -> list[str]:
    low, high = comparison.interval
    sentences = [
        f"median step {_shorter(comparison.change)} (95 % interval {100 * low:.1f} to "
        f"{100 * high:.1f} %), mean step {_shorter(comparison.mean_change)}",
    ]
    if comparison.treated:
        sentences.append(
            f"{comparison.won:.1f} ms a step won, {comparison.to_win:.1f} ms were there to win "
            f"({names.get(comparison.treated, comparison.treated)}), of which "
            f"{comparison.treated_fall:.1f} ms are gone"
        )
    for kind, (old, new) in comparison.side_effects.items():
        sentences.append(f"side effect: {names.get(kind, kind)} {old:.1f} -> {new:.1f} ms a step")
    sentences.append(f"now: {comparison.bottleneck.title}")
    return sentences


def _shorter(change: float) -> str:
    return f"{100 * abs(change):.1f} % {'shorter' if change >= 0 else 'longer'}"


def draw(path: str, comparison: Comparison, before: Run) -> None:
    """A stacked step before and after, as a picture.

    Raises:
        CommandError: matplotlib is missing, or the file could not be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CommandError("--plot needs matplotlib: pip install matplotlib") from error
    colors = ("#2a6f97", "#7b2d8b", "#61a5c2", "#e8833a", "#c1121f", "#d8d8d8", "#9a9a9a")
    figure = Figure(figsize=(9, 3.6), dpi=120, layout="constrained")
    axes = figure.subplots()
    names = before.kind_names()
    sides = (comparison.before, comparison.after)
    left = [0.0, 0.0]
    for kind, color in zip(KINDS, colors, strict=True):
        widths = [side[kind] for side in sides]
        if max(widths) < 0.001 * comparison.before["step"]:
            continue
        bars = axes.barh([0, 1], widths, left=left, color=color, label=names.get(kind, kind))
        axes.bar_label(
            bars,
            [f"{w:.1f}" if w > 0.05 * max(s["step"] for s in sides) else "" for w in widths],
            label_type="center",
        )
        left = [a + b for a, b in zip(left, widths, strict=True)]
    if comparison.treated:
        ceiling = comparison.before["step"] - comparison.to_win
        axes.axvline(ceiling, color="black", ls="--", lw=1)
        axes.text(ceiling, 0.5, f" ceiling {ceiling:.1f} ms", va="center")
    axes.set_yticks([0, 1], [f"before\n{left[0]:.1f} ms", f"after\n{left[1]:.1f} ms"])
    axes.set_ylim(1.6, -0.6)
    axes.set_xlabel("a step, ms")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, frameon=False, fontsize=8)
    figure.suptitle(f"{comparison.verdict}: median step {_shorter(comparison.change)}")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise CommandError(f"--plot {path}: {error}. Name a .png file to write") from error
