"""worker_init_fn: torch's own workers run it, and say whether headrace can go on without them.

It usually seeds. Then the random state that it leaves is all that is needed of a worker, and its
process ends. If it changes anything that samples depend on, or raises, the workers stay: they have
been torch's from the beginning, so that the function runs once a worker in either case.
"""

import copy
import os
import pickle
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, get_worker_info
from torch.utils.data.dataloader import _BaseDataLoaderIter

from headrace import collate
from headrace.progress import Progress
from headrace.recipe import NotNative
from headrace.settings import ProcessSettings
from headrace.torch_iterator import AccountedWorkerIterator

if TYPE_CHECKING:
    from headrace.loader import DataLoader

_STAY, _END = b"stay", b"end"


class BegunByTorch(AccountedWorkerIterator):
    """torch's iterator with its workers, until it is known whether they are needed.

    Attributes:
        refusal: why they are, or None.
        random_states: torch's state in each worker after worker_init_fn; its process has ended.
        pulled: what was drawn from the sampler so far, batch by batch.
    """

    def __init__(self, loader: "DataLoader[Any]", progress: Progress) -> None:
        self.refusal: str | None = None
        self.random_states: list[torch.Tensor] = []
        self.pulled: list[Any] = []
        self._decided = False
        pipes = [Pipe() for _ in range(loader.num_workers)]
        self._ends = [ours for ours, _ in pipes]
        self._worker_ends = [theirs for _, theirs in pipes]
        super().__init__(loader, progress)
        for end in self._worker_ends:
            end.close()
        self._decide(loader.timeout)

    # torch's constructor sets it, and hands it to the workers.
    @property
    def _worker_init_fn(self) -> Any:
        return self._reporting

    @_worker_init_fn.setter
    def _worker_init_fn(self, function: Callable[[int], None]) -> None:
        self._reporting = _Reporting(
            function, self._worker_ends, self._collate_fn, self._auto_collation
        )

    def _next_index(self) -> Any:
        index = super()._next_index()
        if not self._decided:
            self.pulled.append(index)
        return index

    def _decide(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s if timeout_s > 0 else None
        reports = [
            self._report(end, worker, deadline)
            for end, worker in zip(self._ends, self._workers, strict=True)
        ]
        self.refusal = next((report for report in reports if isinstance(report, str)), None)
        self._decided = True
        if self.refusal is None:
            self.random_states = [
                torch.frombuffer(bytearray(report), dtype=torch.uint8)
                for report in reports
                if isinstance(report, bytes)
            ]
            self._shutdown_workers()
        else:
            self.pulled.clear()
            self._tell(_STAY)

    def _report(self, end: Connection, worker: Any, deadline: float | None) -> bytes | str:
        left_s = None if deadline is None else max(0, deadline - time.monotonic())
        ready = wait([end, worker.sentinel], left_s)
        if not ready:
            return "it takes longer than the loader's timeout"
        return end.recv() if end in ready else "a worker ended in it"

    def _tell(self, word: bytes) -> None:
        for end in self._ends:
            with suppress(OSError):  # nobody is there any more
                end.send(word)
            end.close()
        self._ends = []

    def _shutdown_workers(self) -> None:
        self._tell(_END)
        super()._shutdown_workers()

    def base_state(self) -> dict[str, Any]:
        """The attributes of torch's base iterator, for another iterator to go on from."""
        return {name: getattr(self, name) for name in _names_of_base_state()}


@cache
def _names_of_base_state() -> list[str]:
    generator = torch.Generator()  # not the one that others draw from
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(), generator=generator)
    return list(vars(_BaseDataLoaderIter(loader)))


# --- in the worker --------------------------------------------------------------------------------


class _Reporting:
    """Stands in a worker for worker_init_fn: runs it, reports, and waits for what is decided."""

    def __init__(
        self,
        function: Callable[[int], None],
        ends: list[Connection],
        collate_fn: Any,
        auto_collation: bool,
    ) -> None:
        self._function = function
        self._ends = ends
        self._collation = collate_fn, auto_collation

    def __call__(self, worker_id: int) -> None:
        end = self._ends[worker_id]
        before = self._photograph()
        try:
            self._function(worker_id)
        except BaseException:
            end.send("it raised an exception")
            raise
        after = self._photograph()
        if isinstance(before, str) or before != after:
            reason = before if isinstance(before, str) else "it changes what samples are made from"
            end.send(reason)
        else:
            end.send(torch.get_rng_state().numpy().tobytes())
        parent = os.getppid()
        while not end.poll(1):
            if os.getppid() != parent:
                sys.exit()
        if end.recv() == _END:
            sys.exit()

    def _photograph(self) -> Any:
        """What samples depend on besides the random state; a str: why it cannot be told."""
        from headrace.route import check_process

        info = get_worker_info()
        assert info is not None
        try:
            check_process()
            mixing = collate.recognise(*self._collation)
            return (
                ProcessSettings.current(),
                pickle.dumps(mixing),
                (info.id, info.num_workers, info.seed, id(info.dataset)),
                list(_contents(info.dataset)),
            )
        except NotNative as refusal:
            return f"in its worker {refusal.reason}"
        except Exception as error:
            return f"its effect cannot be told: {error!r}"


def _contents(dataset: Any) -> Iterator[Any]:
    """The attributes of each dataset of a tree; two such lists are equal if nothing was changed."""
    yield type(dataset), {name: _content(value) for name, value in vars(dataset).items()}
    if type(dataset) is Subset:
        yield from _contents(dataset.dataset)
    elif type(dataset) is ConcatDataset:
        for part in dataset.datasets:
            yield from _contents(part)


class _Very:
    """Equal to what holds the very same object."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Very) and self.value is other.value


def _content(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return (
            value.shape,
            value.dtype,
            zlib.crc32(np.ascontiguousarray(value).data),
        )
    if type(value) in (list, dict, set):
        return copy.copy(value)
    if type(value).__module__.startswith("torchvision."):  # transforms
        return pickle.dumps(value)
    return _Very(value)
