"""What each rank of test_ranks.py runs under torchrun: an epoch, written down batch by batch.

ranks_training.py sharded FOLDER OUTPUT [--resume STATE] [--kill RANK STEP]
ranks_training.py distributed FOLDER OUTPUT
ranks_training.py accelerate FOLDER OUTPUT

Each rank appends a line of JSON per batch to OUTPUT/rank N.jsonl. "sharded" steps one loader with
each remainder side by side, and rank 0 saves their states to OUTPUT/state.json after each step.
The other two train a model on torch's loader, then on headrace's.
"""

import argparse
import faulthandler
import hashlib
import json
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import DistributedSampler
from torchvision.datasets import ImageFolder

import headrace
from support import train

REMAINDERS = ("drop", "wrap", "pad")
BATCH_SIZE = 2
EPOCH = 2
TIMEOUT_S = 80
LOADERS: dict[str, Any] = {"torch": TorchLoader, "headrace": headrace.DataLoader}


def sharded_loader(
    folder: Path, remainder: str, num_workers: int, num_replicas: int | None = None
) -> headrace.DataLoader[Any]:
    """The rank's loader; with num_replicas=1 the whole epoch's, in any process."""
    dataset = ImageFolder(folder, train())
    rank = None if num_replicas is None else 0
    sampler = headrace.ShardedSampler(dataset, num_replicas, rank, seed=1, remainder=remainder)
    return headrace.DataLoader(
        dataset,
        BATCH_SIZE,
        sampler=sampler,
        num_workers=num_workers,
        threads=1,
        rng="counter",
        seed=8,
    )


def hashes(images: torch.Tensor) -> list[str]:
    return [hashlib.blake2b(image.numpy().tobytes()).hexdigest() for image in images]


def sharded(arguments: argparse.Namespace, log: Any, rank: int) -> None:
    loaders = {name: sharded_loader(arguments.folder, name, 2) for name in REMAINDERS}
    saved = json.loads(arguments.resume.read_text())["loaders"] if arguments.resume else None
    for name, loader in loaders.items():
        assert loader.explain().path == "native"
        if saved:
            loader.load_state_dict(saved[name])
        else:
            loader.set_epoch(EPOCH)
    iterators = [iter(loader) for loader in loaders.values()]
    masks = [iter(loader.sampler.mask().tolist()) for loader in loaders.values()]
    for step, batches in enumerate(zip(*iterators, strict=True)):
        for (name, loader), mask, (images, labels) in zip(
            loaders.items(), masks, batches, strict=True
        ):
            write(
                log,
                step=step,
                remainder=name,
                ids=labels.tolist(),
                pixels=hashes(images),
                counts=[next(mask) for _ in labels],
                done=loader.state_dict()["point"]["sampler"]["done"],
            )
        if (rank, step) == arguments.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        torch.distributed.barrier()
        if rank == 0:
            states = {name: loader.state_dict() for name, loader in loaders.items()}
            fresh = arguments.output / "state.new"
            fresh.write_text(json.dumps({"steps": step + 1, "loaders": states}))
            fresh.replace(arguments.output / "state.json")
        torch.distributed.barrier()
    assert not any(list(mask) for mask in masks), "masks of more samples than there were"


def distributed(arguments: argparse.Namespace, log: Any, rank: int) -> None:
    """DistributedDataParallel, with torch's sampler as it is."""
    for kind, loader_type in LOADERS.items():
        dataset = ImageFolder(arguments.folder, train())
        sampler = DistributedSampler(dataset)  # finds its rank in the process group
        torch.manual_seed(5 + rank)
        loader = loader_type(dataset, 4, sampler=sampler, num_workers=2)
        if kind == "headrace":
            assert loader.explain().path == "native"
        model = torch.nn.parallel.DistributedDataParallel(classifier())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for images, labels in loader:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                write_step(log, kind, epoch, images, labels, loss)


def accelerated(arguments: argparse.Namespace, log: Any, rank: int) -> None:
    """Accelerate's prepare(), which shards the batches of a plain loader over its processes."""
    from accelerate import Accelerator

    from headrace.accelerate import adapt

    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2 and accelerator.process_index == rank
    for kind, loader_type in LOADERS.items():
        torch.manual_seed(5 + rank)
        dataset = ImageFolder(arguments.folder, train())
        loader = loader_type(dataset, 4, shuffle=True, num_workers=2)
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        if kind == "headrace":
            adapt(accelerator)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        if kind == "headrace":
            assert loader.explain().path == "native"
        for epoch in range(2):
            for images, labels in loader:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                optimizer.step()
                counted = accelerator.gather_for_metrics(labels)
                write_step(log, kind, epoch, images, labels, loss, counted=counted.tolist())


def classifier() -> torch.nn.Module:
    generator = torch.get_rng_state()
    torch.manual_seed(1)  # alike on all ranks, and nothing else moves
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 24 * 24, 64))
    torch.set_rng_state(generator)
    return model


def write_step(
    log: Any,
    kind: str,
    epoch: int,
    images: torch.Tensor,
    labels: torch.Tensor,
    loss: torch.Tensor,
    **more: Any,
) -> None:
    ids, pixels = labels.tolist(), hashes(images)
    write(log, kind=kind, epoch=epoch, ids=ids, pixels=pixels, loss=loss.item().hex(), **more)


def write(log: Any, **line: Any) -> None:
    log.write(json.dumps({"pid": os.getpid(), **line}) + "\n")
    log.flush()


MODES = {"sharded": sharded, "distributed": distributed, "accelerate": accelerated}


def main() -> None:
    faulthandler.dump_traceback_later(TIMEOUT_S, exit=True)  # none outlives a test that hangs
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--kill", type=int, nargs=2)
    arguments = parser.parse_args()
    arguments.kill = arguments.kill and tuple(arguments.kill)
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    rank = torch.distributed.get_rank()
    with open(arguments.output / f"rank {rank}.jsonl", "w") as log:
        MODES[arguments.mode](arguments, log, rank)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
