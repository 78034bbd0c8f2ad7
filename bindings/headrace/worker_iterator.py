"""The native iterator for num_workers > 0."""

import copy
from typing import TYPE_CHECKING, Any

from torch._utils import ExceptionWrapper

from headrace import selfcheck
from headrace._core import Question, RandomStream
from headrace.failure import Failure
from headrace.iterator import NativeIterator
from headrace.samples import snapshot
from headrace.worker_init import BegunByTorch

if TYPE_CHECKING:
    from headrace.loader import DataLoader


class WorkerIterator(NativeIterator):
    """num_workers > 0: each virtual worker is a random stream of its own.

    Follows _MultiProcessingDataLoaderIter (torch/utils/data/dataloader.py): prefetch_factor *
    num_workers batches at priming, one more for each that is received, workers in turn.
    """

    def __init__(
        self, loader: "DataLoader[Any]", recipe: str, begun: BegunByTorch | None = None
    ) -> None:
        super().__init__(loader, recipe, begun)
        self._ahead = (loader.prefetch_factor or 0) * self._num_workers
        self._dataset = snapshot(self._dataset)
        self._mixing = copy.deepcopy(self._mixing)
        if begun is None:
            streams = [
                RandomStream(int(self._base_seed + worker) % 2**64, **self._rules)
                for worker in range(self._num_workers)
            ]
        else:
            streams = [selfcheck.stream_of(state, self._rules) for state in begun.random_states]
        self._start(loader, streams, self._ahead)
        if begun is None:
            self._reset(loader, first_iter=True)
        else:
            self._forget()
            for indices in begun.pulled:
                self._put(indices)

    def _reset(self, loader: "DataLoader[Any]", first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        if not first_iter:
            # Workers finish what was dispatched before the break, so their streams move on.
            while self._in_flight():
                batch = self._wait().id
                self._answers.pop(batch, None)
                self._tensors.pop(batch, None)
                if self._pinned is not None:
                    self._pinned.forget(batch)
        self._forget()
        for _ in range(self._ahead):
            self._try_put_index()

    def _forget(self) -> None:
        """Makes the books of an epoch's beginning."""
        self._next_worker = 0
        # By batch id: (worker, indices).
        self._dispatched: dict[int, tuple[int, Any]] = {}

    def _try_put_index(self) -> None:
        try:
            indices = self._next_index()
        except StopIteration:
            return
        self._put(indices)

    def _put(self, indices: Any) -> None:
        worker = self._next_worker
        self._next_worker = (worker + 1) % self._num_workers
        batch, samples = self._submit(worker, indices)
        if batch is None:
            batch = self._engine.submit_opaque(worker, f"it has no plain samples: {samples!r}")
        self._dispatched[batch] = (worker, indices)

    def _next_data(self) -> Any:
        if not self._dispatched:
            if not self._persistent_workers:
                self.close()
            raise StopIteration
        batch = self._wait(self._timeout)
        data = self._deliver(batch)
        del self._dispatched[batch.id]
        self._try_put_index()
        if isinstance(data, Failure):
            data.reraise()
        return data

    def _ahead_on_device(self, loader: "DataLoader[Any]") -> int:
        return loader.prefetch_to_device

    def _expected(self) -> int:
        return len(self._dispatched)

    def _asked(self, question: Question) -> Any:
        return self._dispatched[question.batch][1]

    def _failure(self, batch: int, error: Exception, note: Any) -> Failure:
        worker, _ = self._dispatched[batch]
        return Failure(ExceptionWrapper(where=f"in DataLoader worker process {worker}"), note)
