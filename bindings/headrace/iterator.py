"""What the native iterators share: torch's bookkeeping on top, the C++ engine below.

They are subclasses of torch's own base iterator, which makes its draws (base_seed), its warnings
and its profiler record in its constructor and ``__next__``. They advance the sampler exactly when
torch does, name a random stream for each virtual worker, and let torch itself compute what the
engine will not judge.
"""

import atexit
import dataclasses
import math
import os
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter

from headrace import collate, random_states, selfcheck
from headrace._core import (
    Batch,
    Engine,
    Error,
    Question,
    RandomRules,
    RandomStream,
    Samples,
    Transform,
    begin_exit,
)
from headrace.device import DeviceFeed
from headrace.error_log import SampleError
from headrace.failure import Failure
from headrace.output import Output
from headrace.pinned import PinnedBatches, pinned_bytes
from headrace.progress import Progress, track
from headrace.recipe import Pictures
from headrace.sample_rules import (
    Outcome,
    Request,
    Row,
    RuledCollate,
    RuledDataset,
    nothing_left,
    random_keys,
)
from headrace.samples import LEAVES, fetch, leaves, resolve
from headrace.settings import ProcessSettings
from headrace.worker_init import BegunByTorch

if TYPE_CHECKING:
    from headrace.loader import DataLoader

# One wait in the engine; it looks for signals far more often by itself.
_WAIT_MS = 3_600_000

_live: "weakref.WeakSet[NativeIterator]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # Threads must be gone before the interpreter takes apart what they stand on.
    begin_exit()
    for iterator in list(_live):
        iterator.close()


class NativeIterator(_BaseDataLoaderIter):
    """What both kinds share: resolving indices, waiting, and asking torch."""

    _engine: Engine  # from _start() on

    def __init__(
        self,
        loader: "DataLoader[Any]",
        recipe: str,
        progress: Progress,
        begun: BegunByTorch | None = None,
    ) -> None:
        self._progress = progress
        if begun is None:
            super().__init__(loader)
            self._sampler_iter, self._index_sampler = track(
                self._sampler_iter, self._index_sampler, progress
            )
        else:
            vars(self).update(begun.base_state())
        self._sample_rules = dataclasses.replace(loader.sample_rules, keep_states=False)
        self._log = loader._errors
        self._process = os.getpid()
        # Between a batch's leaving one place and its being in the next.
        self._moving = False
        self._torn = False
        self._recipe = recipe
        self._output = loader.output
        self._mixing = collate.recognise(self._collate_fn, self._auto_collation)
        self._rules = selfcheck.random_rules()
        self._settings = ProcessSettings.current()
        # Where batches go, and those on their way or there; None for the CPU. Of batches that torch
        # computes there is no feed.
        self._device = loader._torch_device()
        self._feed: DeviceFeed | None = None
        # The memory of batches with pin_memory=True.
        self._pinned: PinnedBatches | None = None
        self._questions = 0  # that were answered
        # By batch id, from the hand-over to the delivery.
        self._tensors: dict[int, list[torch.Tensor]] = {}
        # Results of opaque batches and exceptions, by batch id, from the answer to the delivery.
        self._answers: dict[int, Any] = {}
        # Samples that could not be loaded, by batch id and row.
        self._row_errors: dict[int, dict[int, list[SampleError]]] = {}
        _live.add(self)

    def begin(self, progress: Progress) -> None:
        """What a persistent iterator's next epoch is to be accounted in."""
        self._progress = self._index_sampler.progress = progress

    # --- engine ---------------------------------------------------------------------------------

    def _start(
        self, loader: "DataLoader[Any]", streams: list[RandomStream], max_batches_in_flight: int
    ) -> None:
        transform, pool = Transform(self._recipe), loader._buffer_pool()
        if self._device is not None and self._mixing is None and self._auto_collation:
            if transform.splits:
                transform = transform.split()  # a quarter of the bytes to copy
            pinned = loader._pinned_pool(self._device.index)
            pool = pinned.pool
            self._feed = DeviceFeed(
                self._device,
                transform,
                self._ahead_on_device(loader),
                loader.memory_format,
                pinned.allocator,
            )
        elif self._pin_memory and self._mixing is None and self._auto_collation:
            self._pinned = PinnedBatches(transform, loader.memory_format, pinned_bytes)
            pool = self._pinned.pool
        self._engine = Engine(
            transform,
            [] if self._sample_rules.counter else streams,
            pool=pool,
            threads=loader._thread_count(),
            read_budget_bytes=loader.read_budget_bytes,
            reader=loader.reader,
            max_batches_in_flight=max_batches_in_flight,
            pixel_limit=self._settings.pixel_limit,
            own_streams=RandomRules(**self._rules) if self._sample_rules.counter else None,
            collate_draws=self._mixing is not None,
        )
        loader._last_engine = self._engine
        loader._last_feed = self._feed

    def close(self) -> None:
        """Ends the engine's threads. Batches that were handed out stay valid. Idempotent."""
        if hasattr(self, "_engine"):
            self._engine.close()
        if getattr(self, "_feed", None) is not None:
            self._feed.close()  # type: ignore[union-attr]

    def stats(self) -> dict[str, Any]:
        """The engine's counters; after the end, the last ones."""
        return self._engine.stats()

    def __del__(self) -> None:
        self.close()

    def _submit(self, stream: int, indices: Any) -> tuple[int | None, Samples | Exception]:
        """Begins a batch; its id and samples, or None and why it is torch's own business."""
        samples = resolve(self._dataset, self._keys(indices))
        if isinstance(samples, Exception):
            return None, samples
        pinned = self._pinned
        try:
            keys = random_keys(indices) if self._sample_rules.counter else []
            memory = [] if pinned is None else pinned.offer(len(samples))
            batch = self._engine.submit(
                0 if keys else stream, samples, self._settings.directory, keys
            )
        except (TypeError, ValueError, OverflowError) as error:  # labels or paths of odd types
            return None, error
        if pinned is not None:
            pinned.keep(batch, memory)
        return batch, samples

    def _keys(self, indices: Any) -> Any:
        """The keys of a batch: what the sampler gave, or in a list if it gives single keys."""
        return indices if self._auto_collation or type(indices) is Request else [indices]

    def _fetch(self, indices: Any, batch: int = -1) -> Any:
        """The batch as torch makes it; `batch` is its id in the engine, if it has one."""
        collate_fn = self._collate_fn if self._mixing is None else self._mixing.collate
        dataset, rules = self._dataset, self._sample_rules
        if type(indices) is Request:
            failure = partial(self._failure, batch, note=None)
            dataset = RuledDataset(dataset, rules, failure=failure)
            collate_fn = RuledCollate(collate_fn, rules, not self._auto_collation, failure)
        fetcher = _MapDatasetFetcher(dataset, self._auto_collation, collate_fn, self._drop_last)
        return self._output.batch(fetcher.fetch(indices))

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
            # torch's own next() makes a profiler record besides, which takes longer than the rest.
            if self._sampler_iter is None or torch._C._autograd._profiler_enabled():
                return super().__next__()
            data: Any = self._next_data()
            self._num_yielded += 1
            return data
        except Exception:
            raise
        except BaseException:
            self._torn = self._moving or self._in_flight() != self._expected()
            raise

    @property
    def usable(self) -> bool:
        """Whether it can go on: it is not torn, and its threads exist in this process."""
        return not self._torn and self._process == os.getpid()

    def _in_flight(self) -> int:
        """Batches begun and not delivered."""
        return self._engine.in_flight + (0 if self._feed is None else len(self._feed))

    def _wait(self, timeout_s: float = 0) -> Batch:
        """The oldest batch, once every question that stood in its way is answered.

        With a device, as many more as may be on their way are sent there if they are ready.
        """
        if self._feed is None:
            return self._wait_for_engine(timeout_s)
        try:
            if not len(self._feed):
                self._feed.put(self._wait_for_engine(timeout_s))
                self._moving = False
            while not self._feed.full and (batch := self._ready()) is not None:
                self._feed.put(batch)
                self._moving = False
            self._moving = True
            batch, tensors = self._feed.take()
        except torch.OutOfMemoryError:
            self.close()  # a batch is lost, so that there is no going on
            raise
        except Error as error:
            if error.code == "device_failed":
                self.close()
            raise
        if tensors:
            self._tensors[batch.id] = tensors
        return batch

    def _wait_for_engine(self, timeout_s: float) -> Batch:
        deadline = time.monotonic() + timeout_s if timeout_s > 0 else math.inf
        while True:
            left_ms = min(_WAIT_MS, max(0, (deadline - time.monotonic()) * 1000))
            batch = self._step_engine(math.ceil(left_ms))
            if batch is not None:
                return batch
            if time.monotonic() >= deadline:
                raise RuntimeError(f"DataLoader timed out after {timeout_s} seconds")

    def _ready(self) -> Batch | None:
        """The oldest batch, if it is ready or lacks nothing but answers."""
        while self._engine.in_flight:
            asked = self._questions
            batch = self._step_engine(0)
            if batch is not None or self._questions == asked:
                return batch
        return None

    def _step_engine(self, timeout_ms: int) -> Batch | None:
        """A batch of the engine's, or None: after an answer, or when the time is over."""
        event = self._engine.next(timeout_ms)
        if isinstance(event, Batch):
            self._moving = True
            return event
        if isinstance(event, Question):
            self._questions += 1
            self._answer(event)
        return None

    def _answer(self, question: Question) -> None:
        """Computes one sample, or an opaque batch, with torch, on the stream it would have had."""
        if question.collate:
            assert self._mixing is not None
            mixing, (_, dtype, shape) = self._mixing, Transform(self._recipe).output
            images = (question.row, *shape)
            _, after = self._compute(
                question, lambda: mixing.draw(images, getattr(torch, dtype)), None
            )
            self._engine.answer(question, b"", after)
            return

        indices = self._asked(question)
        errors: list[SampleError] = []
        if question.whole_batch:
            result, after = self._compute(
                question, lambda: self._fetch(indices, question.batch), None
            )
        else:
            key = list(self._keys(indices))[question.row]
            note = (question.path or "an image in memory", key, question.reason)
            result, after = self._compute(
                question, lambda: self._load(indices, question.row, key, errors), note
            )
            self._keep_errors(question, errors, failed=isinstance(result, Failure))
        if isinstance(result, Failure):
            self._answers[question.batch] = result
            self._engine.fail(question, after)
        elif question.whole_batch:
            self._answers[question.batch] = result
            self._engine.answer(question, b"", after)
        else:
            if result is None:
                self._engine.skip(question, after)
                return
            image, label = result.value
            self._engine.answer(
                question,
                self._engine_output().row(image).numpy(),
                after,
                label if errors else None,
            )

    def _keep_errors(self, question: Question, errors: list[SampleError], failed: bool) -> None:
        of_batch = self._row_errors.setdefault(question.batch, {})
        of_batch[question.row] = errors
        if failed:  # torch never gets to the rows behind it
            for row in [row for row in of_batch if row > question.row]:
                del of_batch[row]
        if not any(of_batch.values()):
            del self._row_errors[question.batch]

    def _load(self, indices: Any, row: int, key: Any, errors: list[SampleError]) -> Row | None:
        """One sample as torch loads it, or what the rules put in its place; see `load_row`."""
        if type(indices) is not Request:
            return Row(self._fetch_one(key), key)
        ruled = RuledDataset(self._dataset, self._sample_rules, self._fetch_one)
        return ruled.load_row(indices, row, errors)

    def _fetch_one(self, key: Any) -> Any:
        return fetch(self._dataset, key, self._settings.directory)

    def _compute(
        self, question: Question, compute: Callable[[], Any], note: Any
    ) -> tuple[Any, RandomStream]:
        """See :meth:`_draw_from`."""
        return self._draw_from(question.random, question.batch, compute, note)

    def _draw_from(
        self, stream: RandomStream, batch: int, compute: Callable[[], Any], note: Any = None
    ) -> tuple[Any, RandomStream]:
        """Calls `compute` with torch's generator put to `stream`.

        Returns:
            What it returned, or a Failure for what it raised, and where it left the stream.
        """
        saved = torch.get_rng_state()
        state = saved.clone()
        stream.to_torch_state(state.numpy())
        try:
            torch.set_rng_state(state)
            with self._settings.applied(), self._callers_generators():
                result = compute()
        except Exception as error:
            result = self._failure(batch, error, note)
        finally:
            state = torch.get_rng_state()
            torch.set_rng_state(saved)
        return result, selfcheck.stream_of(state, self._rules)

    def _callers_generators(self) -> AbstractContextManager[None]:
        """Saves the caller's from rng="counter", which seeds them for each sample."""
        return random_states.undisturbed() if self._sample_rules.counter else nullcontext()

    def _engine_output(self) -> Output:
        """What the engine itself does to the images after the transform."""
        transform, pictures = self._first_leaf()
        return collate.output_before(
            self._mixing, self._auto_collation, transform, pictures, self._output
        )

    def _first_leaf(self) -> tuple[Any, Pictures]:
        """Its transform and its pictures: those of the others are alike."""
        leaf = next(leaves(self._dataset))
        return leaf.transform, LEAVES[type(leaf)].pictures(leaf)

    def _deliver(self, batch: Batch) -> Any:
        """What a finished batch turns into: tensors, an opaque result, or an exception to raise."""
        errors = sorted(self._row_errors.pop(batch.id, {}).items())
        data = self._tensors.pop(batch.id, None)
        if self._pinned is not None and batch.has_fields:
            data = self._pinned.take(batch.id, batch.rows)
        elif self._pinned is not None:
            self._pinned.forget(batch.id)
        if data is None and (batch.rows or not errors or batch.id in self._answers):
            data = self._place(self._make(batch))
        if not errors:
            return data
        failure = data if isinstance(data, Failure) else None
        events = [each for _, row in errors for each in row]
        return Outcome(None if failure else data, batch.rows == 0, events, failure)

    def _place(self, data: Any) -> Any:
        """`data`, if it is no exception, where the user wants it."""
        if isinstance(data, Outcome):
            placed = None if data.data is None else self._place(data.data)
            return data._replace(data=placed)
        if isinstance(data, Failure):
            return data
        if self._device is not None:
            return self._device.move(data)
        return pin_memory(data, self._pin_memory_device) if self._pin_memory else data

    def _make(self, batch: Batch) -> Any:
        """The same on the CPU."""
        if batch.id in self._answers:
            return self._answers.pop(batch.id)
        fields = [torch.utils.dlpack.from_dlpack(field) for field in batch.dlpack()]
        if not self._auto_collation:
            image, label = fields
            form = collate.sample_form(*self._first_leaf())
            return [image.squeeze_(0).as_subclass(form.type), label.item()]
        if batch.random_before_collate is None:
            return fields
        mixing = self._mixing
        assert mixing is not None
        mixed, _ = self._draw_from(batch.random_before_collate, batch.id, lambda: mixing(fields))
        return mixed if isinstance(mixed, Failure) else self._output.batch(mixed)

    def _accept(self, data: Any) -> Any:
        """What of a delivered batch goes to the caller; NOTHING if nothing is left of it.

        Raises:
            Exception: that of a Failure; Error: with this batch's there were too many bad samples,
                or nothing is left and there are other ranks.
        """
        if isinstance(data, Failure):
            data.reraise()
        outcome = data if isinstance(data, Outcome) else None
        # Once they were too many, batches without any raise too: the run has ended.
        self._log.add([] if outcome is None else outcome.errors)
        if outcome is None:
            return data
        if outcome.failure is not None:
            outcome.failure.reraise()
        return nothing_left(outcome.errors) if outcome.empty else outcome.data

    @abstractmethod
    def _next_data(self) -> Any:
        """What next() gives."""

    @abstractmethod
    def _ahead_on_device(self, loader: "DataLoader[Any]") -> int:
        """Batches that may be on the device, or on their way, before they are asked for."""

    @abstractmethod
    def _expected(self) -> int:
        """How many batches are in flight, by the books."""

    @abstractmethod
    def _asked(self, question: Question) -> Any:
        """The indices of the question's batch."""

    @abstractmethod
    def _failure(self, batch: int, error: Exception, note: Any) -> "Failure":
        """`error` as torch would raise it when the batch has its turn."""
