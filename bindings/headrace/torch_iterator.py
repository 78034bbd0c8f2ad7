"""torch's own iterators, under a loader's rules.

What torch's fetcher, in the main process or in workers, loads and collates goes through
headrace.sample_rules; what comes back is accounted for here.
"""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import (
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from headrace import random_states
from headrace.progress import Progress, TrackedSampler
from headrace.sample_rules import (
    NOTHING,
    Outcome,
    RuledCollate,
    RuledDataset,
    RuledInit,
    nothing_left,
)

if TYPE_CHECKING:
    from headrace.loader import DataLoader


class _Accounted:
    """Counts batches, logs errors and converts what comes, on the consumer's thread."""

    # torch's
    _profile_name: str
    _index_sampler: Any
    _pin_memory: bool
    _pin_memory_device: Any

    def __init__(self, loader: "DataLoader[Any]", progress: Progress) -> None:
        self._progress = progress
        progress.any_order = loader.num_workers > 1 and not loader.in_order
        self._tracked = loader.is_map_style
        self._log = loader._errors
        self._output = loader.output
        super().__init__(_ruled(loader, progress))  # type: ignore[call-arg]
        kind = (
            "_SingleProcess" if loader.num_workers == 0 else "_MultiProcessing"
        )  # profilers show torch's names
        self._device = loader._torch_device()  # now that the workers are forked
        self._profile_name = f"enumerate(DataLoader)#{kind}DataLoaderIter.__next__"

    def begin(self, progress: Progress) -> None:
        """What a persistent iterator's next epoch is to be accounted in."""
        if progress.workers is not None:
            # Its workers go on; where, is known only if every batch that they got has come back.
            last = self._progress
            progress.workers = last.workers if last.finished else None
        progress.any_order = self._progress.any_order
        self._progress = progress
        if self._tracked:
            self._index_sampler.progress = progress

    def _next_data(self) -> Any:
        while True:
            over = self._turns_over()
            try:
                data = super()._next_data()  # type: ignore[misc]
            except StopIteration:
                self._progress.finish()
                raise
            except BaseException:
                if self._turns_over() != over:
                    self._count(None)
                raise
            data = self._accept(data)
            if data is not NOTHING:
                return data

    def _accept(self, data: Any) -> Any:
        outcome = data if isinstance(data, Outcome) else None
        self._count(None if outcome is None else outcome.state)
        if outcome is not None:
            self._log.add(outcome.errors)
            if outcome.failure is not None:
                outcome.failure.reraise()
            if outcome.empty:
                return nothing_left(outcome.errors)
            data = outcome.data
        data = self._output.batch(data)
        if self._device is not None:
            return self._device.move(data)
        if self._pin_memory and not self._output.plain:  # torch pinned what it was before
            return pin_memory(data, self._pin_memory_device)
        return data

    def _count(self, worker_state: Any) -> None:
        if self._tracked:
            self._progress.count(worker_state)

    @abstractmethod
    def _turns_over(self) -> int:
        """How many batches the sampler gave whose turn is over."""


class AccountedMainProcessIterator(_Accounted, _SingleProcessDataLoaderIter):
    """torch's iterator for num_workers=0."""

    # The caller's generators before a batch with rng="counter", which seeds them for each sample.
    _callers_states: random_states.State | None = None

    def _turns_over(self) -> int:
        return self._progress.pulled

    def _next_index(self) -> Any:
        self._give_back()  # after a batch of which nothing was left
        index = super()._next_index()
        self._callers_states = random_states.capture() if self._progress.counter else None
        return index

    def _next_data(self) -> Any:
        try:
            return super()._next_data()
        finally:
            self._give_back()

    def _give_back(self) -> None:
        if self._callers_states is not None:
            random_states.restore(self._callers_states)
            self._callers_states = None


class AccountedWorkerIterator(_Accounted, _MultiProcessingDataLoaderIter):
    """torch's iterator for num_workers > 0."""

    def _turns_over(self) -> int:
        return self._rcvd_idx

    def _try_put_index(self) -> None:
        # An epoch that goes on does so at the worker whose turn it is.
        if self._send_idx == 0 and self._tracked:
            self._sampler_iter.fast_forward()
            for _ in range(self._progress.pulled % self._num_workers):
                next(self._worker_queue_idx_cycle)
        super()._try_put_index()


def torch_iterator(loader: "DataLoader[Any]", progress: Progress) -> Any:
    """What torch's DataLoader would make, under the loader's rules."""
    if loader.num_workers == 0:
        return AccountedMainProcessIterator(loader, progress)
    loader.check_worker_number_rationality()
    return AccountedWorkerIterator(loader, progress)


def _ruled(loader: "DataLoader[Any]", progress: Progress) -> "DataLoader[Any]":
    """The loader as torch's iterators are to see it."""
    view: DataLoader[Any] = object.__new__(type(loader))
    view.__dict__.update(loader.__dict__)
    if not loader.is_map_style:
        return view
    single = loader.batch_sampler is None
    changes: dict[str, Any] = {
        "sampler" if single else "batch_sampler": TrackedSampler(loader._index_sampler, progress)
    }
    rules = loader.sample_rules
    if not rules.plain:
        changes["dataset"] = RuledDataset(loader.dataset, rules)
        changes["collate_fn"] = RuledCollate(loader.collate_fn, rules, single)
        if loader.num_workers > 0:
            changes["worker_init_fn"] = RuledInit(loader.worker_init_fn)
    view.__dict__.update(changes)
    return view
