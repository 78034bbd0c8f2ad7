"""Runs torch's DataLoader and headrace's side by side and compares every batch bit for bit.

Exit code 0: everything was the same. 1: something differed, and the first difference is shown.
2: nothing was proved, because of a mistake in the call or because headrace would have used torch.
"""

import argparse
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import PIL
import torch
import torchvision
from rich.console import Console
from rich.progress import Progress
from torch.utils.data import DistributedSampler, Subset
from torchvision.datasets import ImageFolder

from headrace.cli import CommandError
from headrace.device import TorchDevice, normalise
from headrace.folder_arguments import add_folder_arguments, count, left_out, open_folder
from headrace.loader import DataLoader
from headrace.main_iterator import MainProcessIterator
from headrace.route import decide
from headrace.worker_iterator import WorkerIterator

SUMMARY = "show that headrace gives torch's batches, bit for bit, on a folder of images"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what `headrace verify` takes."""
    add = parser.add_argument
    add_folder_arguments(parser)
    add("--num-workers", type=count(0), default=2, metavar="N", help="default: 2")
    add("--epochs", type=count(1), default=1, metavar="E", help="default: 1")
    add("--batch-size", type=count(1), default=32, metavar="B", help="default: 32")
    add("--seed", type=count(0), default=0, metavar="S", help="for torch's generator (default: 0)")
    add("--persistent", action="store_true", help="persistent_workers=True")
    add("--no-shuffle", action="store_true", help="in the dataset's order")
    add("--drop-last", action="store_true", help="leave out a last batch that is not full")
    add(
        "--subset",
        type=_share,
        metavar="FRACTION_OR_N",
        help="only so many samples, drawn by the seed, as a Subset: 0.1 or 500",
    )
    add("--world-size", type=count(1), metavar="W", help="as one of W ranks (DistributedSampler)")
    add("--rank", type=count(0), metavar="R", help="which one (default: 0)")
    add("--threads", type=count(1), metavar="T", help="headrace's threads (default: all cores)")
    add("--device", metavar="D", help="where headrace delivers: cuda, cuda:1 (default: the CPU)")


def run(arguments: argparse.Namespace) -> int:
    """Carries out `headrace verify`; returns 0 or 1.

    Raises:
        CommandError: nothing could be compared.
    """
    folder = open_folder(
        arguments.directory, arguments.api, arguments.transform, arguments.all_files
    )
    dataset = _subset(folder, arguments)
    torch_loader = _loader(torch.utils.data.DataLoader, dataset, arguments)
    ours = {"threads": arguments.threads, "device": _device(arguments)}
    headrace_loader = _loader(DataLoader, dataset, arguments, **ours)
    if len(torch_loader) == 0:
        raise CommandError(
            f"{len(dataset)} samples of {arguments.directory} make no batch to compare. "
            "Take more of them, a smaller --batch-size, or no --drop-last"
        )
    console = Console(stderr=True)
    if others := left_out(folder):
        remedy = "" if arguments.all_files else "; --all-files takes such files too"
        console.print(f"left out: {others}{remedy}", markup=False, highlight=False, soft_wrap=True)
    first, difference = _compare(torch_loader, headrace_loader, arguments, console)
    if difference is not None or not first.raised or arguments.batch_size == 1:
        return _show(difference or first.summary(), difference is None)
    # An exception hides what the other samples of its batch are.
    alone = argparse.Namespace(
        **{**vars(arguments), "batch_size": 1, "no_shuffle": True, "world_size": None}
        | {"rank": None, "epochs": 1, "persistent": False}
    )
    samples = Subset(dataset, list(first.raised))
    second, difference = _compare(
        _loader(torch.utils.data.DataLoader, samples, alone),
        _loader(DataLoader, samples, alone, **ours),
        alone,
        console,
    )
    one_by_one = f"{second.summary()}: the samples of batches with exceptions, one by one"
    return _show(difference or f"{first.summary()}\n{one_by_one}", difference is None)


def _compare(
    torch_loader: Any, headrace_loader: Any, arguments: argparse.Namespace, console: Console
) -> tuple["Comparison", str | None]:
    """The first difference too, None without one."""
    # No refresh from a thread of its own: torch forks its workers meanwhile.
    with (
        torch.random.fork_rng(devices=[]),
        Progress(
            console=console, auto_refresh=False, transient=True, disable=not console.is_terminal
        ) as progress,
    ):
        task = progress.add_task("comparing", total=arguments.epochs * len(torch_loader))
        start = torch.Generator().manual_seed(arguments.seed).get_state()
        comparison = Comparison(torch_loader, headrace_loader, start)
        difference = comparison.run(
            arguments.epochs, lambda: progress.update(task, advance=1, refresh=True)
        )
    return comparison, difference


def _show(text: str, identical: bool) -> int:
    print(text.encode(errors="backslashreplace").decode())  # file names may be any bytes
    return 0 if identical else 1


# --- what is compared ---------------------------------------------------------------------------


def _subset(folder: ImageFolder, arguments: argparse.Namespace) -> Any:
    directory = arguments.directory
    if arguments.subset is None:
        return folder
    size, subset = len(folder), arguments.subset
    wanted = round(subset * size) if isinstance(subset, float) else subset
    if not 1 <= wanted <= size:
        raise CommandError(
            f"--subset {subset} means {wanted} of the {size} samples of {directory}. "
            f"Ask for 1 to {size}"
        )
    generator = torch.Generator().manual_seed(arguments.seed)
    return Subset(folder, torch.randperm(size, generator=generator)[:wanted].tolist())


def _device(arguments: argparse.Namespace) -> torch.device | None:
    try:
        device = normalise(arguments.device)
        if device is not None:
            TorchDevice(device)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise CommandError(
            f"--device {arguments.device} cannot be had ({str(error).splitlines()[0]}). "
            "Name one that torch.cuda can use, or leave out --device"
        ) from error
    return device


def _loader(kind: Any, dataset: Any, arguments: argparse.Namespace, **options: Any) -> Any:
    shuffle = not arguments.no_shuffle
    if arguments.rank is not None and arguments.world_size is None:
        raise CommandError(
            f"--rank {arguments.rank} needs --world-size, to share out {arguments.directory}"
        )
    try:
        sampler: DistributedSampler[Any] | None = None
        if arguments.world_size is not None:
            sampler = DistributedSampler(
                dataset,
                arguments.world_size,
                arguments.rank or 0,
                shuffle,
                arguments.seed,
                arguments.drop_last,
            )
        return kind(
            dataset,
            arguments.batch_size,
            shuffle=shuffle and sampler is None,
            sampler=sampler,
            num_workers=arguments.num_workers,
            drop_last=arguments.drop_last,
            persistent_workers=arguments.persistent,
            **options,
        )
    except ValueError as error:
        raise CommandError(
            f"torch refuses these options for {arguments.directory}: {error}"
        ) from error


# --- the comparison -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What a loader did when it was asked for a batch; neither field: the epoch was over."""

    batch: Any = None
    error: Exception | None = None

    def __str__(self) -> str:
        if self.error is not None:
            return f"raises {_name(type(self.error))}: {_comparable(self.error)}"
        return "ends the epoch" if self.batch is None else "gives a batch"


class Side:
    """One loader with a random state of its own, though both share torch's default generator."""

    def __init__(self, loader: Any, state: torch.Tensor) -> None:
        self.loader = loader
        self.state = state
        self.iterator: Any = None

    def begin(self, epoch: int) -> None:
        """iter(loader), as a training loop would have it."""
        if isinstance(self.loader.sampler, DistributedSampler):
            self.loader.sampler.set_epoch(epoch)
        self.iterator = self._apart(lambda: iter(self.loader))

    def step(self) -> Outcome:
        """next(iterator)."""
        try:
            return Outcome(batch=_on_cpu(self._apart(lambda: next(self.iterator))))
        except StopIteration:
            return Outcome()
        except Exception as error:
            # With its traceback it would keep the iterator, and torch's workers, alive.
            return Outcome(error=error.with_traceback(None))

    def _apart(self, call: Callable[[], Any]) -> Any:
        torch.set_rng_state(self.state)
        try:
            return call()
        finally:
            self.state = torch.get_rng_state()


def _on_cpu(batch: Any) -> Any:
    if type(batch) is not list:
        return batch
    return [field.cpu() if isinstance(field, torch.Tensor) else field for field in batch]


class Comparison:
    """Both loaders in lockstep, with one batch of each in memory.

    Attributes:
        raised: keys of the samples of batches that raised, each once; the values mean nothing.
    """

    def __init__(self, torch_loader: Any, headrace_loader: Any, state: torch.Tensor) -> None:
        self._torch = Side(torch_loader, state)
        self._headrace = Side(headrace_loader, state)
        self.raised: dict[int, None] = {}
        self._epochs = self._batches = self._samples = self._exceptions = 0
        # Of each native iterator, at the end of its last epoch.
        self._stats: list[dict[str, Any]] = []
        # The generator when the epoch began, and whether iter() only reset a persistent iterator.
        self._epoch_state = state
        self._reset = False

    def run(self, epochs: int, on_batch: Callable[[], None] = lambda: None) -> str | None:
        """Compares so many epochs; returns the first difference in words, None without one.

        Raises:
            CommandError: what came was not headrace's own work, so that being equal says nothing.
        """
        try:
            for epoch in range(epochs):
                difference = self._compare_epoch(epoch, on_batch)
                if difference is not None:
                    return difference
            self._refuse_torch_path()
            self._refuse_whole_batches()
            return None
        finally:
            # Now, not when garbage is collected: torch may then wait seconds for each worker.
            self._torch.iterator = self._headrace.iterator = None

    def summary(self) -> str:
        """The line that says what was found to be the same."""
        parts = [_plural(self._batches, "batch", "es"), _plural(self._samples, "sample")]
        if self._exceptions:
            parts.insert(1, _plural(self._exceptions, "exception"))
        parts.append(_plural(self._epochs, "epoch"))
        asked = _plural(self._sum(lambda stats: stats["questions"]), "sample")
        return f"identical: {', '.join(parts)} ({asked} decided by Pillow)"

    def _compare_epoch(self, epoch: int, on_batch: Callable[[], None]) -> str | None:
        self._refuse_torch_path()
        self._epoch_state, last = self._torch.state, self._torch.iterator
        # torch forks its workers here: before headrace's threads are there.
        self._torch.begin(epoch)
        self._reset = self._torch.iterator is last
        self._headrace.begin(epoch)
        if not isinstance(self._headrace.iterator, MainProcessIterator | WorkerIterator):
            raise CommandError(
                "not compared: headrace's loader handed out an iterator of torch's, "
                f"{type(self._headrace.iterator).__qualname__}"
            )
        for batch in itertools.count():
            over, difference = self._step(epoch, batch)
            if difference is not None:
                return difference
            if over:
                break
            on_batch()
        if self._reset:
            self._stats.pop()
        self._stats.append(self._headrace.loader.stats())
        return None

    def _step(self, epoch: int, batch: int) -> tuple[bool, str | None]:
        wanted, got = self._torch.step(), self._headrace.step()
        found = _compare_outcomes(wanted, got)
        if found is None and not torch.equal(self._torch.state, self._headrace.state):
            found = Difference("torch's default generator stands elsewhere after it")
        if found is not None:
            return True, self._report(found, epoch, batch)
        if wanted.error is not None:
            self._exceptions += 1
            self.raised.update(dict.fromkeys(self._indices(batch)))
        elif wanted.batch is not None:
            self._batches += 1
            self._samples += len(wanted.batch[1])
        else:
            self._epochs += 1
            return True, None
        return False, None

    # --- did headrace do the work? --------------------------------------------------------------

    def _refuse_torch_path(self) -> None:
        explanation, _ = decide(self._headrace.loader)
        if not explanation.native:
            raise CommandError(
                f"not compared: headrace would use torch's own loader here ({explanation}). "
                "That is always identical, and says nothing about headrace"
            )

    def _refuse_whole_batches(self) -> None:
        """A batch that torch computed as a whole is one question for many samples."""
        native = self._sum(lambda stats: stats["stages"]["transform"]["items"])
        asked = self._sum(lambda stats: stats["questions"])
        if native + asked < self._samples:
            raise CommandError(
                f"not compared: of {self._samples} samples headrace made {native} and asked about "
                f"{asked}; torch computed the others as whole batches"
            )

    def _sum(self, counter: Callable[[dict[str, Any]], int]) -> int:
        return sum(counter(stats) for stats in self._stats)

    # --- the report -----------------------------------------------------------------------------

    def _report(self, found: "Difference", epoch: int, batch: int) -> str:
        place = f"epoch {epoch}, batch {batch}"
        indices = self._indices(batch)
        row = self._failing_row(indices) if found.raised else found.row
        if row is not None:
            index, path = _origin(self._torch.loader.dataset, indices[row])
            place += f", row {row} (dataset index {index}, {path})"
        return (
            f"different: {place}\n"
            f"  {found.what}\n"
            f"  (counted from 0; torch {torch.__version__}, torchvision {torchvision.__version__}, "
            f"Pillow {PIL.__version__})"
        )

    def _indices(self, batch: int) -> list[int]:
        """The batch's indices, from torch's order once more; empty behind the last batch."""
        loader = self._torch.loader
        torch.set_rng_state(self._epoch_state)
        if not self._reset:
            # Making an iterator draws base_seed before the sampler starts.
            iter(torch.utils.data.DataLoader(loader.dataset))
        return next(itertools.islice(loader.batch_sampler, batch, None), [])

    def _failing_row(self, indices: list[int]) -> int | None:
        for row, index in enumerate(indices):
            try:
                self._torch.loader.dataset[index]
            except Exception:
                return row
        return None


def _origin(dataset: Any, index: int) -> tuple[int, str]:
    """The index in the ImageFolder, and the file."""
    while isinstance(dataset, Subset):
        index, dataset = dataset.indices[index], dataset.dataset
    return index, dataset.samples[index][0]


# --- differences --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """The first thing in a batch that is not the same."""

    what: str
    row: int | None = None
    raised: bool = False


def _compare_outcomes(wanted: Outcome, got: Outcome) -> Difference | None:
    if wanted.batch is not None and got.batch is not None:
        return compare_batches(wanted.batch, got.batch)
    if str(wanted) == str(got):
        return None
    raised = wanted.error is not None or got.error is not None
    return Difference(f"torch {wanted}\n  headrace {got}", raised=raised)


def compare_batches(wanted: Any, got: Any) -> Difference | None:
    """The first difference, by row, of two batches [images, labels]."""
    if type(wanted) is not type(got) or len(wanted) != len(got):
        return Difference(f"torch gives {_structure(wanted)}, headrace {_structure(got)}")
    differences = [
        _compare_tensors(name, *pair)
        for name, *pair in zip(("images", "labels"), wanted, got, strict=True)
    ]
    found = [difference for difference in differences if difference is not None]
    return min(found, key=lambda each: -1 if each.row is None else each.row, default=None)


def _compare_tensors(name: str, wanted: torch.Tensor, got: torch.Tensor) -> Difference | None:
    if _kind(wanted) != _kind(got):
        return Difference(f"{name}: torch gives {_kind(wanted)}, headrace {_kind(got)}")
    # As integers: -0.0 is not 0.0, and a NaN is itself.
    integer = {1: torch.uint8, 4: torch.int32, 8: torch.int64}[wanted.element_size()]
    unequal = wanted.view(integer) != got.view(integer)
    rows = unequal.flatten(1).any(1) if unequal.dim() > 1 else unequal
    if not rows.any():
        return None
    row = int(rows.nonzero()[0])
    if wanted.dim() == 1:
        return Difference(f"label: torch {wanted[row].item()}, headrace {got[row].item()}", row)
    channel, y, x = unequal[row].nonzero()[0].tolist()
    return Difference(
        f"pixel (channel {channel}, y {y}, x {x}): torch {_value(wanted[row, channel, y, x])}, "
        f"headrace {_value(got[row, channel, y, x])}; in all {int(unequal[row].sum())} of "
        f"{unequal[row].numel()} values of this sample and {int(rows.sum())} of {len(rows)} "
        "samples of this batch differ",
        row,
    )


def _kind(field: Any) -> str:
    if not isinstance(field, torch.Tensor):
        return _name(type(field))
    shape, strides = list(field.shape), list(field.stride())
    return f"{_name(type(field))} {field.dtype} of shape {shape}, strides {strides}"


def _structure(batch: Any) -> str:
    return f"a {_name(type(batch))} of {len(batch)}"


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _value(value: torch.Tensor) -> str:
    return f"{value.item()} (bits 0x{int(value.view(torch.int32)) & 0xFFFFFFFF:08x})"


def _comparable(error: Exception) -> str:
    """The message less the lines about frames in torch's wrapping of a worker's traceback: those
    name files and line numbers."""
    lines = str(error).splitlines()
    if len(lines) < 2 or not lines[1].startswith("Original Traceback"):
        return str(error)
    return "\n".join(line for line in lines if not line.startswith(" "))


# --- argument types -----------------------------------------------------------------------------


def _share(text: str) -> int | float:
    if text.isdigit():
        return int(text)
    share = float(text)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is neither a count nor a fraction up to 1")
    return share


def _plural(count: int, noun: str, ending: str = "s") -> str:
    return f"{count} {noun}{'' if count == 1 else ending}"
