"""The native iterator for num_workers > 0."""

import copy
from typing import TYPE_CHECKING, Any

from torch._utils import ExceptionWrapper

from headrace import random_states, selfcheck
from headrace._core import Batch, Question, RandomStream
from headrace.failure import Failure
from headrace.iterator import NativeIterator
from headrace.progress import Progress
from headrace.sample_rules import NOTHING
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
        self,
        loader: "DataLoader[Any]",
        recipe: str,
        progress: Progress,
        begun: BegunByTorch | None = None,
    ) -> None:
        super().__init__(loader, recipe, progress, begun)
        self._ahead = (loader.prefetch_factor or 0) * self._num_workers
        self._dataset = snapshot(self._dataset)
        self._mixing = copy.deepcopy(self._mixing)
        # After the latest batch of each worker that has left the engine.
        self._streams = [self._stream(worker, begun) for worker in range(self._num_workers)]
        self._start(loader, self._streams, self._ahead)
        if begun is None:
            self._reset(loader, first_iter=True)
        else:
            self._begin_books()
            for indices in begun.pulled:
                self._put(indices)

    def _stream(self, worker: int, begun: BegunByTorch | None) -> RandomStream:
        known = self._progress.workers and self._progress.workers[worker]
        if known:
            state = random_states.of_stream(known) if isinstance(known, RandomStream) else known
            return selfcheck.stream_of(random_states.torch_state(state), self._rules)
        if begun is not None:
            return selfcheck.stream_of(begun.random_states[worker], self._rules)
        return RandomStream(int(self._base_seed + worker) % 2**64, **self._rules)

    def _reset(self, loader: "DataLoader[Any]", first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        if not first_iter:
            # Workers finish what was dispatched before the break, so their streams move on.
            while self._in_flight():
                batch = self._wait()
                for books in (self._answers, self._tensors, self._row_errors):
                    books.pop(batch.id, None)
                if self._pinned is not None:
                    self._pinned.forget(batch.id)
                self._left(self._dispatched[batch.id][0], batch)
        self._sampler_iter.fast_forward()
        self._begin_books()
        for _ in range(self._ahead):
            self._try_put_index()

    def _begin_books(self) -> None:
        """Makes the books of an epoch's beginning, or of where it goes on."""
        if not self._sample_rules.counter:
            self._progress.workers = list(self._streams)
        self._next_worker = self._progress.batches % self._num_workers
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
        while True:
            if not self._dispatched:
                if not self._persistent_workers:
                    self.close()
                self._progress.finish()
                raise StopIteration
            batch = self._wait(self._timeout)
            data = self._deliver(batch)
            worker, _ = self._dispatched.pop(batch.id)
            self._left(worker, batch)
            self._progress.count(self._streams[worker])
            self._try_put_index()
            data = self._accept(data)
            if data is not NOTHING:
                return data

    def _left(self, worker: int, batch: Batch) -> None:
        # A copy: what is a part of the batch would keep its memory.
        self._streams[worker] = batch.random_after.copy()

    def _ahead_on_device(self, loader: "DataLoader[Any]") -> int:
        return loader.prefetch_to_device

    def _expected(self) -> int:
        return len(self._dispatched)

    def _asked(self, question: Question) -> Any:
        return self._dispatched[question.batch][1]

    def _failure(self, batch: int, error: Exception, note: Any) -> Failure:
        worker, _ = self._dispatched[batch]
        return Failure(ExceptionWrapper(where=f"in DataLoader worker process {worker}"), note)
