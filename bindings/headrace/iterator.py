"""The native iterators: torch's bookkeeping on top, the C++ engine below.

Both are subclasses of torch's own base iterator, which makes its draws (base_seed), its warnings
and its profiler record in its constructor and ``__next__``. They advance the sampler exactly when
torch does, name a random stream for each virtual worker, and let torch itself compute what the
engine will not judge.
"""

import atexit
import copy
import math
import os
import time
import weakref
from abc import abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import BatchSampler, SequentialSampler, Subset
from torch.utils.data import RandomSampler as TorchRandomSampler
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.data.distributed import DistributedSampler

from headrace import selfcheck
from headrace._core import Batch, Engine, Question, RandomStream, Transform, begin_exit
from headrace.recipe import is_random
from headrace.route import decide
from headrace.settings import ProcessSettings

if TYPE_CHECKING:
    from headrace.loader import DataLoader

Sample = tuple[str, int, int]

# One wait in the engine; it looks for signals far more often by itself.
_WAIT_MS = 3_600_000

# Batches in a row without a draw by the caller after which planning ahead pays again.
_CALM = 8

_live: "weakref.WeakSet[_NativeIterator]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # Threads must be gone before the interpreter takes apart what they stand on.
    begin_exit()
    for iterator in list(_live):
        iterator.close()


class _NativeIterator(_BaseDataLoaderIter):
    """What both kinds share: resolving indices, waiting, and asking torch."""

    _engine: Engine  # from _start() on

    def __init__(self, loader: "DataLoader[Any]", recipe: str) -> None:
        super().__init__(loader)
        self._process = os.getpid()
        # Between a batch's leaving one place and its being in the next.
        self._moving = False
        self._torn = False
        self._recipe = recipe
        self._rules = selfcheck.random_rules()
        self._settings = ProcessSettings.current()
        # Results of opaque batches and exceptions, by batch id, from the answer to the delivery.
        self._answers: dict[int, Any] = {}
        _live.add(self)

    # --- engine ---------------------------------------------------------------------------------

    def _start(
        self, loader: "DataLoader[Any]", streams: list[RandomStream], max_batches_in_flight: int
    ) -> None:
        self._engine = Engine(
            Transform(self._recipe),
            streams,
            pool=loader._buffer_pool(),
            threads=loader._thread_count(),
            read_budget_bytes=loader.read_budget_bytes,
            max_batches_in_flight=max_batches_in_flight,
            pixel_limit=self._settings.pixel_limit,
        )
        loader._last_engine = self._engine

    def close(self) -> None:
        """Ends the engine's threads. Batches that were handed out stay valid. Idempotent."""
        if hasattr(self, "_engine"):
            self._engine.close()

    def stats(self) -> dict[str, Any]:
        """The engine's counters; after the end, the last ones."""
        return self._engine.stats()

    def __del__(self) -> None:
        self.close()

    def _submit(self, stream: int, indices: Any) -> tuple[int | None, list[Sample] | Exception]:
        """Begins a batch; its id and samples, or None and why it is torch's own business."""
        samples = resolve(self._dataset, indices)
        if isinstance(samples, list):
            try:
                return self._engine.submit(stream, samples), samples
            except (TypeError, ValueError, OverflowError) as error:  # labels or paths of odd types
                samples = error
        return None, samples

    def _fetch(self, indices: Any) -> Any:
        """The batch as torch makes it."""
        fetcher = _MapDatasetFetcher(self._dataset, True, self._collate_fn, self._drop_last)
        return fetcher.fetch(indices)

    # --- waiting and asking -----------------------------------------------------------------------

    def __next__(self) -> Any:
        """The next batch.

        After Ctrl-C while it waited or asked torch it can be called again, and nothing is lost.

        Raises:
            RuntimeError: Ctrl-C came in the microseconds in which a batch changes hands.
        """
        if self._torn:
            raise RuntimeError(
                "the last next() was interrupted while it moved a batch, which is lost. Make a new "
                "iterator, with iter(loader)"
            )
        self._moving = False
        try:
            return super().__next__()
        except Exception:
            raise
        except BaseException:
            self._torn = self._moving or self._engine.in_flight != self._expected()
            raise

    @property
    def usable(self) -> bool:
        """Whether it can go on: it is not torn, and its threads exist in this process."""
        return not self._torn and self._process == os.getpid()

    def _wait(self, timeout_s: float = 0) -> Batch:
        """The oldest batch, once every question that stood in its way is answered."""
        deadline = time.monotonic() + timeout_s if timeout_s > 0 else math.inf
        while True:
            left_ms = min(_WAIT_MS, max(0, (deadline - time.monotonic()) * 1000))
            event = self._engine.next(math.ceil(left_ms))
            if isinstance(event, Batch):
                self._moving = True
                return event
            if isinstance(event, Question):
                self._answer(event)
            elif time.monotonic() >= deadline:
                raise RuntimeError(f"DataLoader timed out after {timeout_s} seconds")

    def _answer(self, question: Question) -> None:
        """Computes one sample, or an opaque batch, with torch, on the stream it would have had."""
        indices = self._asked(question)
        saved = torch.get_rng_state()
        state = saved.clone()
        question.random.to_torch_state(state.numpy())
        try:
            torch.set_rng_state(state)
            with self._settings.applied():
                if question.whole_batch:
                    result = self._fetch(indices)
                else:
                    result = self._dataset[list(indices)[question.row]]
        except Exception as error:
            note = None
            if not question.whole_batch:
                note = (question.path, list(indices)[question.row], question.reason)
            self._answers[question.batch] = self._failure(question.batch, error, note)
            failed = True
        else:
            failed = False
        finally:
            state = torch.get_rng_state()
            torch.set_rng_state(saved)
        after = selfcheck.stream_of(state, self._rules)
        if failed:
            self._engine.fail(question, after)
        elif question.whole_batch:
            self._answers[question.batch] = result
            self._engine.answer(question, b"", after)
        else:
            image = result[0].contiguous().view(-1).view(torch.uint8)
            self._engine.answer(question, image.numpy(), after)

    def _deliver(self, batch: Batch) -> Any:
        """What a finished batch turns into: tensors, an opaque result, or an exception to raise."""
        if batch.id in self._answers:
            return self._answers.pop(batch.id)
        return [torch.utils.dlpack.from_dlpack(field) for field in batch.dlpack()]

    @abstractmethod
    def _expected(self) -> int:
        """How many batches are in flight, by the books."""

    @abstractmethod
    def _asked(self, question: Question) -> Any:
        """The indices of the question's batch."""

    @abstractmethod
    def _failure(self, batch: int, error: Exception, note: Any) -> "_Failure":
        """`error` as torch would raise it when the batch has its turn."""


class _Failure:
    """An exception on its way to the batch's turn."""

    def __init__(
        self, error: Exception | ExceptionWrapper, note: tuple[str, Any, str] | None
    ) -> None:
        self._error: Exception | ExceptionWrapper | None = error
        self._note = note

    def reraise(self) -> None:
        """Raises it, once. What catches it holds no cycle: iterators die with their last user."""
        error = self._take()
        if self._note is not None:
            path, index, reason = self._note
            vars(error).update(sample_path=path, sample_index=index)
            if hasattr(error, "add_note"):
                error.add_note(f"headrace: {path} (sample {index}): {reason}")
        try:
            raise error
        finally:
            del error

    def _take(self) -> Exception:
        error, self._error = self._error, None
        if not isinstance(error, ExceptionWrapper):
            assert error is not None
            return error
        try:
            error.reraise()
        except Exception as rebuilt:
            return rebuilt.with_traceback(None)
        raise AssertionError("not reached")


def resolve(dataset: Any, indices: Any) -> list[Sample] | Exception:
    """The (path, label, index) of each index, by the lookups that dataset[index] would make.

    Returns an exception where those fail: the batch is then torch's own business.
    """
    chain = []
    while type(dataset) is Subset:
        chain.append(dataset.indices)
        dataset = dataset.dataset
    try:
        if iter(indices) is indices:
            raise TypeError("its indices can be read only once")
        result = []
        for index in indices:
            place = index
            for table in chain:
                place = table[place]
            path, label = dataset.samples[place]
            result.append((path, label, int(place)))
    except Exception as error:
        return error
    return result or ValueError("it has no samples")


def snapshot(dataset: Any) -> Any:
    """What a worker process would have got: later changes of the original are not seen."""
    dataset = copy.copy(dataset)
    if type(dataset) is Subset:
        dataset.dataset = snapshot(dataset.dataset)
        dataset.indices = _copy_of_table(dataset.indices)
    else:
        dataset.samples = _copy_of_table(dataset.samples)
        dataset.transform = copy.deepcopy(dataset.transform)
    return dataset


def _copy_of_table(table: Any) -> Any:
    # Of the usual kinds a flat copy will do, which is much faster.
    return copy.copy(table) if type(table) in (list, tuple, range) else copy.deepcopy(table)


class WorkerIterator(_NativeIterator):
    """num_workers > 0: each virtual worker is a random stream of its own.

    Follows _MultiProcessingDataLoaderIter (torch/utils/data/dataloader.py): prefetch_factor *
    num_workers batches at priming, one more for each that is received, workers in turn.
    """

    def __init__(self, loader: "DataLoader[Any]", recipe: str) -> None:
        super().__init__(loader, recipe)
        self._ahead = (loader.prefetch_factor or 0) * self._num_workers
        self._dataset = snapshot(self._dataset)
        streams = [
            RandomStream(int(self._base_seed + worker) % 2**64, **self._rules)
            for worker in range(self._num_workers)
        ]
        self._start(loader, streams, self._ahead)
        self._reset(loader, first_iter=True)

    def _reset(self, loader: "DataLoader[Any]", first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        if not first_iter:
            # Workers finish what was dispatched before the break, so their streams move on.
            while self._engine.in_flight:
                self._answers.pop(self._wait().id, None)
        self._next_worker = 0
        # By batch id: (worker, indices).
        self._dispatched: dict[int, tuple[int, Any]] = {}
        for _ in range(self._ahead):
            self._try_put_index()

    def _try_put_index(self) -> None:
        try:
            indices = self._next_index()
        except StopIteration:
            return
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
        if isinstance(data, _Failure):
            data.reraise()
        return pin_memory(data, self._pin_memory_device) if self._pin_memory else data

    def _expected(self) -> int:
        return len(self._dispatched)

    def _asked(self, question: Question) -> Any:
        return self._dispatched[question.batch][1]

    def _failure(self, batch: int, error: Exception, note: Any) -> _Failure:
        worker, _ = self._dispatched[batch]
        return _Failure(ExceptionWrapper(where=f"in DataLoader worker process {worker}"), note)


class MainProcessIterator(_NativeIterator):
    """num_workers=0: draws come from torch's default generator, which the caller shares.

    Batches are planned ahead from where the generator stands, and planned again when the caller has
    drawn in between. The dataset is read live. Each next() leaves the generator where torch would.
    """

    def __init__(self, loader: "DataLoader[Any]", recipe: str) -> None:
        super().__init__(loader, recipe)
        self._loader = loader
        # (batch id, indices, samples) of what was pulled from the sampler, oldest first. Without an
        # id it is not in flight: torch makes it when it has its turn.
        self._queue: deque[tuple[int | None, Any, list[Sample] | Exception]] = deque()
        self._exhausted = False
        self._max_ahead = self._lookahead(loader)
        # Where the last batch left the generator, and for how many batches in a row it still stood
        # there: planning ahead is wasted on a caller who draws between batches.
        self._left_at: RandomStream | None = None
        self._calm = _CALM
        self._native = True
        self._restart()

    def _lookahead(self, loader: "DataLoader[Any]") -> int:
        """Batches that may be begun before they are asked for.

        Only where pulling the sampler early cannot be noticed: torch's own samplers, once started,
        draw from nothing but generators of their own.
        """
        batches = loader.batch_sampler
        if type(batches) is not BatchSampler:
            return 0
        sampler = batches.sampler
        quiet = type(sampler) in (SequentialSampler, DistributedSampler) or (
            type(sampler) is TorchRandomSampler and sampler.generator is None
        )
        if not quiet:
            return 0
        return max(1, math.ceil(4 * loader._thread_count() / batches.batch_size))

    def _restart(self) -> None:
        """A new engine for what is in flight, from the main generator's state."""
        self._moving = True
        self.close()
        state = selfcheck.stream_of(torch.get_rng_state(), self._rules)
        self._random = is_random(self._recipe)
        self._answers.clear()
        self._start(self._loader, [state], self._max_ahead + 1)
        pending, self._queue = self._queue, deque()
        for _, indices, _ in pending:
            self._begin(indices)
        self._moving = False

    def _begin(self, indices: Any) -> None:
        batch, samples = self._submit(0, indices) if self._native else (None, [])
        self._queue.append((batch, indices, samples))

    def _pull(self) -> bool:
        """Begins one more batch; False when the sampler has none."""
        if not self._exhausted:
            self._moving = True
            try:
                indices = self._next_index()
            except StopIteration:
                self._exhausted = True
            else:
                if not self._queue:
                    self._follow_generator()
                self._begin(indices)
            self._moving = False
        return not self._exhausted

    def _follow_generator(self) -> None:
        if not self._random:
            return
        stream = selfcheck.stream_of(torch.get_rng_state(), self._rules)
        if self._left_at is not None:
            self._calm = self._calm + 1 if stream.same_position(self._left_at) else 0
            self._left_at = None
        self._engine.rewind(0, stream)

    def _follow_dataset(self) -> None:
        """Begins anew when what the batches in flight were begun with has changed."""
        explanation, recipe = decide(self._loader)
        settings = ProcessSettings.current()
        batch, indices, samples = self._queue[0]
        if (
            explanation.native != self._native
            or (recipe and recipe != self._recipe)
            or settings != self._settings
            or (batch is not None and _differ(samples, resolve(self._dataset, indices)))
        ):
            self._native = explanation.native
            self._recipe = recipe or self._recipe
            self._settings = settings
            self._restart()

    def _next_data(self) -> Any:
        if not self._queue and not self._pull():
            self.close()
            raise StopIteration
        self._follow_dataset()
        data = self._by_torch() if self._queue[0][0] is None else self._by_engine()
        if isinstance(data, _Failure):
            data.reraise()
        return pin_memory(data, self._pin_memory_device) if self._pin_memory else data

    def _by_torch(self) -> Any:
        _, indices, _ = self._queue.popleft()
        return self._fetch(indices)

    def _by_engine(self) -> Any:
        self._follow_generator()
        while self._calm >= _CALM and len(self._queue) <= self._max_ahead and self._pull():
            pass
        batch = self._wait()
        data = self._deliver(batch)
        self._queue.popleft()
        if self._random:
            state = torch.get_rng_state()
            batch.random_after.to_torch_state(state.numpy())
            torch.set_rng_state(state)
            self._left_at = batch.random_after
        return data

    def _expected(self) -> int:
        return sum(batch is not None for batch, _, _ in self._queue)

    def _asked(self, question: Question) -> Any:
        return next(indices for batch, indices, _ in self._queue if batch == question.batch)

    def _failure(self, batch: int, error: Exception, note: Any) -> _Failure:
        return _Failure(error, note)


def _differ(before: Any, now: list[Sample] | Exception) -> bool:
    """Whether samples are others; labels must be the very same objects, since 1 == True."""
    return isinstance(now, Exception) or any(
        path != new_path or label is not new_label
        for (path, label, _), (new_path, new_label, _) in zip(before, now, strict=True)
    )
