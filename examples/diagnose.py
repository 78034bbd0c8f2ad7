"""Profiles a training that waits for its data, treats it as the doctor says, and checks the cure.

    python examples/diagnose.py [--data FOLDER] [--out FOLDER]

Needs no GPU. Ends with status 0 when `headrace compare` says VERIFIED.
"""

import argparse
import shutil
import sys
from pathlib import Path

import torch.utils.data

import demo
import headrace
import train
from headrace import cli

STEPS_A_SPAN = 8  # wait 1, warm up 2, record 5


def profiled_training(
    loader_class: type, folder: Path, dataset: object, num_workers: int, verdict: bool
) -> None:
    """Trains for as many steps as three recorded spans take."""
    loader = train.make_loader(loader_class, dataset, batch_size=16, num_workers=num_workers)
    epochs = -(-3 * STEPS_A_SPAN // len(loader))
    shutil.rmtree(folder, ignore_errors=True)
    with headrace.profile(
        folder, loader=loader, dtype=torch.float32, repeat=3, verdict=verdict
    ) as profiler:
        train.train(loader, 10, epochs, seed=1, after_step=profiler.step)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="FOLDER/CLASS/PICTURE.jpg")
    parser.add_argument("--out", type=Path, metavar="FOLDER", default=demo.BUILD / "diagnose")
    # torch's default. With more, batches come in bursts, and it takes more steps for a verdict.
    parser.add_argument("--num-workers", type=int, default=0)
    arguments = parser.parse_args()
    dataset = demo.open_dataset(arguments.data, limit=400)
    workers = arguments.num_workers
    before, after = arguments.out / "before", arguments.out / "after"

    print("1. Where is this training slow?\n")
    profiled_training(torch.utils.data.DataLoader, before, dataset, workers, verdict=True)
    print("\n2. The treatment: from headrace import DataLoader")
    profiled_training(headrace.DataLoader, after, dataset, workers, verdict=False)
    print("\n3. Did it help?\n")
    picture = str(arguments.out / "compare.png")
    status = cli.main(["compare", str(before), str(after), "--plot", picture])
    print(f"Picture: {picture}")
    return status


if __name__ == "__main__":
    sys.exit(main())
