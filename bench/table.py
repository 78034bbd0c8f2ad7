"""Prints README's table of speeds: headrace against torch's DataLoader, on one core and on all.

    python bench/table.py PHOTOS [CAMERA] [--only TEXT] [--stages BENCH_STAGES]

PHOTOS is a folder of images of some hundred pixels, CAMERA one of large ones, both with one folder
for each class. Each row is a run of `headrace bench`, which compares the batches first, and takes
about half a minute; BENCH_STAGES is the program of that name, for the distance to the floor.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from rich import box
from rich.console import Console
from rich.table import Table

CORES = sorted(os.sched_getaffinity(0))


def with_half_chroma(folder: Path, to: Path) -> Path:
    """The folder's pictures once more, with 4:2:0 subsampling, as most JPEG files have it."""
    for file in sorted(folder.rglob("*.jp*g")):
        copy = to / file.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        Image.open(file).convert("RGB").save(copy, "JPEG", quality=90, subsampling=2)
    return to


def bench(folder: Path, transform: str, cores: list[int], images: int, runs: int) -> Any:
    """The results of one run of `headrace bench` on these cores."""
    # Elsewhere torch was never at its best.
    workers = [0, 1] if len(cores) == 1 else [len(cores), 2 * len(cores)]
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", "headrace", "bench", str(folder)]
        command += ["--transform", transform, "--images", str(images), "--runs", str(runs)]
        command += ["--num-workers", ",".join(map(str, workers)), "--threads", str(len(cores))]
        command += ["--json", file.name]
        subprocess.run(
            command,
            check=True,
            stdout=subprocess.DEVNULL,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        return json.loads(Path(file.name).read_text())


def floor_line(program: Path, folder: Path) -> str:
    """How near the limit that libjpeg-turbo's entropy decoding sets a sample comes, on one core."""
    output = subprocess.run(
        [program, folder, "5"],
        check=True,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, CORES[:1]),
    ).stdout
    return next(line for line in output.splitlines() if line.startswith("floor"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("camera", type=Path, nargs="?")
    parser.add_argument("--images", type=int, default=400, help="a run, of photos (default: 400)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose name has TEXT in it")
    parser.add_argument("--stages", type=Path, metavar="BENCH_STAGES", help="for the floor")
    arguments = parser.parse_args()

    table = Table(box=box.MARKDOWN)
    table.add_column("images/s, median (slowest-fastest)")
    for column in ("cores", "torch at its best", "headrace", "times"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as scratch:
        half = Path(scratch) / "half"
        rows = [
            ("photos, train", arguments.photos, "train", arguments.images),
            ("photos at 4:2:0, train", half, "train", arguments.images),
            ("photos, eval", arguments.photos, "eval", arguments.images),
        ]
        if arguments.camera is not None:
            rows.append(("camera, train", arguments.camera, "train", arguments.images // 12))
        for name, folder, transform, images in rows:
            for cores in [CORES[:1], CORES] if len(CORES) > 1 else [CORES]:
                if arguments.only not in f"{name}, {len(cores)} cores":
                    continue
                if folder == half and not half.exists():
                    with_half_chroma(arguments.photos, half)
                results = bench(folder, transform, cores, images, arguments.runs)
                best = max(results[:-1], key=lambda result: result["images_per_s"])
                print(f"{name}, {len(cores)} cores: {rate(results[-1])}", file=sys.stderr)
                table.add_row(
                    name,
                    str(len(cores)),
                    f"{rate(best)}, {best['num_workers']} workers",
                    rate(results[-1]),
                    f"{results[-1]['images_per_s'] / best['images_per_s']:.2f}",
                )
                environment = results[-1]["environment"]
    if not table.rows:
        parser.error(f"no row has {arguments.only!r} in its name")
    Console(width=120).print(table)
    if arguments.stages is not None:
        print(f"of a sample: {floor_line(arguments.stages, arguments.photos)}")
    print(" ".join(f"{name} {value}," for name, value in environment.items() if name != "cores"))


def rate(result: Any) -> str:
    return (
        f"{result['images_per_s']:,.0f} "
        f"({result['images_per_s_min']:,.0f}-{result['images_per_s_max']:,.0f})"
    )


if __name__ == "__main__":
    main()
