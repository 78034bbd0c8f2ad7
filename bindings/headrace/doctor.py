"""Reads traces of torch.profiler and says where the training's time goes and what to treat first.

Give the traces of one training: one file, or all ranks', or a tar or directory of them.
Exit code 0: a diagnosis was made, even if it is "cannot tell". 2: a trace could not be read.
"""

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from headrace import __version__
from headrace.cli import CommandError
from headrace.diagnosis import Finding, Run
from headrace.rules import cannot_tell, close, findings_of
from headrace.trace import TraceError, list_files, read_traces

SUMMARY = "say from torch.profiler's traces where a training is slow, and what to treat first"

_COLORS = {"high": "red", "moderate": "yellow", "none": "cyan"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what `headrace doctor` takes."""
    add = parser.add_argument
    add(
        "traces",
        nargs="+",
        metavar="TRACE",
        help="a .json, .json.gz, a .tar or .tar.gz of them, or a directory; one or more ranks",
    )
    add("--json", metavar="FILE", help="write the diagnosis there as JSON too; - : only to stdout")


def run(arguments: argparse.Namespace) -> int:
    """Carries out `headrace doctor`; returns 0.

    Raises:
        CommandError: a trace could not be read, or the JSON not be written.
    """
    diagnosed = load_run(arguments.traces)
    findings = findings_of(diagnosed)
    if arguments.json != "-":
        Console().print(render(diagnosed, findings))
    if arguments.json:
        write_json(arguments.json, to_json(diagnosed, findings))
    return 0


def load_run(paths: Sequence[str]) -> Run:
    """Reads traces with a progress bar on a terminal.

    Raises:
        CommandError: one could not be read.
    """
    console = Console(stderr=True)
    columns = (TextColumn("reading traces"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    try:
        total = sum(os.path.getsize(path) for path in list_files(paths))
        with Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        ) as progress:
            task = progress.add_task("", total=total)
            traces = read_traces(paths, lambda count: progress.advance(task, count))
    except TraceError as error:
        raise CommandError(str(error)) from error
    if not traces:
        raise CommandError(f"{' '.join(paths)}: no trace in it. Give a trace of torch.profiler")
    return Run(traces)


def write_json(path: str, content: dict[str, Any]) -> None:
    """Writes an object; "-" is stdout.

    Raises:
        CommandError: the file could not be written.
    """
    text = json.dumps(content, indent=2)
    if path == "-":
        print(text)
        return
    try:
        with open(path, "w") as file:
            file.write(text + "\n")
    except OSError as error:
        raise CommandError(f"--json {path}: {error.strerror}. Name a file to write") from error


def to_json(diagnosed: Run, findings: list[Finding]) -> dict[str, Any]:
    """The diagnosis as plain data.

    Returns:
        `findings` in their order, each with `layer`, `kind`, `level`, `title`, `ms_per_step`,
        `ceiling_ms` (the step if all of it is won), `evidence`, `treatment`; `verdict` ("firm",
        "weak", "none"); `step_ms`, `accounting`, `ranks`, `cannot_tell` and what was read.
    """
    step_ms = diagnosed.step_ms
    return {
        "headrace": __version__,
        "verdict": diagnosed.verdict,
        "findings": [
            {**vars(finding), "ceiling_ms": step_ms - finding.ms_per_step} for finding in findings
        ],
        "cannot_tell": cannot_tell(diagnosed),
        "steps": diagnosed.step_count,
        "step_ms": step_ms,
        "median_step_ms": diagnosed.median_step_ms,
        "gpu_busy_percent": 100
        * sum(diagnosed.share(kind) for kind in ("compute", "communication", "copy")),
        "accounting": diagnosed.accounting(),
        "gpu": diagnosed.gpu.get("name"),
        "world_size": diagnosed.world_size,
        "ranks": [
            {
                "rank": rank.number,
                "traces": [trace.path for trace in rank.traces],
                "steps": len(rank.steps),
                "dropped_steps": rank.total("dropped_steps"),
                "step_ms": rank.step_ms,
                "communication_ms": rank.mean_ms(lambda step: step.communication_ns),
                "ms_per_step": {kind: rank.kind_ms(kind) for kind in diagnosed.accounting()},
            }
            for rank in diagnosed.ranks
        ],
    }


# --- for people -----------------------------------------------------------------------------------


def render(diagnosed: Run, findings: list[Finding]) -> RenderableType:
    """The diagnosis for a terminal."""
    parts: list[RenderableType] = [_accounting_table(diagnosed)]
    if len(diagnosed.ranks) > 1:
        parts.append(_rank_table(diagnosed))
    parts.append(_headline(diagnosed, findings))
    parts += [_finding(number, diagnosed, f) for number, f in enumerate(findings, start=1)]
    if notes := cannot_tell(diagnosed):
        parts.append(Text("\nWhat this input can't tell", style="bold"))
        parts += [_item("?", note) for note in notes]
    return Group(*parts)


def _accounting_table(diagnosed: Run) -> Table:
    count, ranks = diagnosed.step_count, len(diagnosed.ranks)
    what = f"{count} step{'s'[: count > 1]}" if diagnosed.has_steps else "the whole recorded time"
    of_ranks = f" of {ranks} ranks" if ranks > 1 else ""
    gpu = diagnosed.gpu.get("name", "no GPU named")
    table = Table(
        title=f"{what}{of_ranks}, mean {diagnosed.step_ms:.1f} ms, median "
        f"{diagnosed.median_step_ms:.1f} ms ({gpu})",
        title_justify="left",
    )
    table.add_column("a step's time")
    table.add_column("ms", justify="right")
    table.add_column("%", justify="right")
    names = diagnosed.kind_names()
    for kind, time in diagnosed.accounting().items():
        if kind in names:
            table.add_row(names[kind], f"{time['ms_per_step']:.2f}", f"{time['percent']:.1f}")
    table.add_section()
    table.add_row("step", f"{diagnosed.step_ms:.2f}", "100.0")
    return table


def _rank_table(diagnosed: Run) -> Table:
    table = Table(title="ms a step by rank", title_justify="left")
    columns = ("rank", "steps", "step", "compute", "communication", "exposed", "loader", "host")
    for column in columns:
        table.add_column(column, justify="right")
    for rank in diagnosed.ranks:
        times = (
            rank.step_ms,
            rank.kind_ms("compute"),
            rank.mean_ms(lambda step: step.communication_ns),
            rank.kind_ms("communication"),
            rank.kind_ms("loader"),
            rank.kind_ms("host"),
        )
        number = "?" if rank.number is None else str(rank.number)
        table.add_row(number, str(len(rank.steps)), *(f"{time:.2f}" for time in times))
    return table


def _headline(diagnosed: Run, findings: list[Finding]) -> Text:
    first = findings[0]
    text = Text("\n")
    if first.layer == "unknown":
        return text.append(first.title, style="bold cyan")
    weak = "weak verdict: " if diagnosed.verdict == "weak" else ""
    text.append(f"{weak}{first.layer}", style=f"bold {_COLORS[first.level]}")
    if len(findings) > 1 and findings[1].layer != "unknown" and close(first, findings[1]):
        text.append(f" and {findings[1].layer} ({findings[1].kind})", style="bold")
        text.append(", within a fifth of each other")
    return text


def _finding(number: int, diagnosed: Run, finding: Finding) -> RenderableType:
    head = Text(f"\n{number}. ", style="bold")
    head.append(f"{finding.layer}, {finding.level}: ", style=f"bold {_COLORS[finding.level]}")
    head.append(finding.title)
    parts: list[RenderableType] = [head]
    if finding.ms_per_step:
        ceiling = diagnosed.step_ms - finding.ms_per_step
        parts.append(
            _item(
                " ",
                f"to win back: {finding.ms_per_step:.1f} ms a step; ceiling: a step of "
                f"{ceiling:.1f} ms, {diagnosed.step_ms / ceiling:.2f} x as fast"
                if ceiling > 0
                else f"to win back: {finding.ms_per_step:.1f} ms a step",
            )
        )
    parts += [_item("-", sentence) for sentence in finding.evidence]
    parts += [_item(f"{n})", sentence) for n, sentence in enumerate(finding.treatment, start=1)]
    return Group(*parts)


def _item(mark: str, sentence: str) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=2)
    grid.add_column(overflow="fold")
    grid.add_row(mark, Text(sentence.encode(errors="backslashreplace").decode()))
    return Padding(grid, (0, 0, 0, 2))
