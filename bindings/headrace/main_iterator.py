"""The native iterator for num_workers=0."""

import math
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler, SequentialSampler
from torch.utils.data import RandomSampler as TorchRandomSampler
from torch.utils.data.distributed import DistributedSampler

from headrace import collate, selfcheck
from headrace._core import Question, Samples
from headrace.failure import Failure
from headrace.iterator import NativeIterator
from headrace.progress import Progress
from headrace.recipe import NotNative, is_random
from headrace.route import decide
from headrace.sample_rules import NOTHING
from headrace.samples import resolve
from headrace.settings import ProcessSettings
from headrace.sharded_sampler import ShardedSampler
from headrace.watch import Watch

if TYPE_CHECKING:
    from headrace.loader import DataLoader

# Batches in a row without a draw by the caller after which planning ahead pays again.
_CALM = 8


class MainProcessIterator(NativeIterator):
    """num_workers=0: draws come from torch's default generator, which the caller shares.

    Batches are planned ahead from where the generator stands, and planned again when the caller has
    drawn in between. The dataset is read live. Each next() leaves the generator where torch would.
    """

    def __init__(self, loader: "DataLoader[Any]", recipe: str, progress: Progress) -> None:
        super().__init__(loader, recipe, progress)
        self._loader = loader
        # (batch id, indices, samples) of what was pulled from the sampler, oldest first. Without an
        # id it is not in flight: torch makes it when it has its turn.
        self._queue: deque[tuple[int | None, Any, Samples | Exception | None]] = deque()
        self._exhausted = False
        self._max_ahead = self._lookahead(loader)
        # The generator's state as it was found; as the last batch left it; and for how many batches
        # in a row it still was that: planning ahead is wasted on a caller who draws in between.
        self._state = torch.get_rng_state()
        self._left: bytes | None = None
        self._calm = _CALM
        self._native = True
        self._watch: Watch | None = None  # of the path that was decided last
        self._mixing_key = None if self._mixing is None else self._mixing.key
        self._restart()

    def _lookahead(self, loader: "DataLoader[Any]") -> int:
        """Batches that may be begun before they are asked for.

        Only where pulling the sampler early cannot be noticed: torch's own samplers and ours, once
        started, draw from nothing but generators of their own.
        """
        sampler, batch_size = loader._index_sampler, 1
        if loader._auto_collation:
            if type(sampler) is not BatchSampler:
                return 0
            sampler, batch_size = sampler.sampler, sampler.batch_size  # type: ignore[attr-defined]
        quiet = type(sampler) in (SequentialSampler, DistributedSampler, ShardedSampler) or (
            type(sampler) is TorchRandomSampler and sampler.generator is None
        )
        if not quiet:
            return 0
        return max(1, math.ceil(4 * loader._thread_count() / batch_size))

    def _restart(self) -> None:
        """A new engine for what is in flight, from the main generator's state."""
        self._moving = True
        self.close()
        state = selfcheck.stream_of(torch.get_rng_state(), self._rules)
        self._random = not self._sample_rules.counter and (
            is_random(self._recipe) or self._mixing is not None
        )
        self._answers.clear()
        self._row_errors.clear()
        self._start(self._loader, [state], self._max_ahead + 1)
        pending, self._queue = self._queue, deque()
        for _, indices, _ in pending:
            self._begin(indices)
        self._moving = False

    def _begin(self, indices: Any) -> None:
        batch, samples = self._submit(0, indices) if self._native else (None, None)
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
        self._state = torch.get_rng_state()
        left, self._left = self._left, None
        if left is not None:
            if self._state.numpy().tobytes() == left:
                self._calm += 1
                return
            self._calm = 0
        self._engine.rewind(0, selfcheck.stream_of(self._state, self._rules))

    def _follow_dataset(self) -> None:
        """Begins anew when what the batches in flight were begun with has changed."""
        batch, indices, samples = self._queue[0]
        settings = ProcessSettings.current()
        if (
            self._path_changed()
            or settings != self._settings
            or (batch is not None and not self._as_before(samples, indices))
        ):
            self._settings = settings
            self._restart()

    def _path_changed(self) -> bool:
        if self._watch is not None and self._watch.unchanged():
            return False
        watch = Watch(self._loader)
        explanation, recipe = decide(self._loader)
        mixing, native = None, explanation.native
        if native:
            try:
                mixing = collate.recognise(self._collate_fn, self._auto_collation)
            except NotNative:  # another collate_fn than the loader has now
                native = False
        self._watch = watch if native and self._collate_fn is self._loader.collate_fn else None
        mixing_key = None if mixing is None else mixing.key
        before = self._native, self._recipe, self._mixing_key
        self._native, self._mixing, self._mixing_key = native, mixing, mixing_key
        self._recipe = recipe or self._recipe
        return (native, self._recipe, mixing_key) != before

    def _as_before(self, samples: Any, indices: Any) -> bool:
        now = resolve(self._dataset, self._keys(indices), samples)
        return not isinstance(now, Exception) and (now is samples or samples.same_as(now))

    def _next_data(self) -> Any:
        while True:
            if not self._queue and not self._pull():
                self.close()
                self._progress.finish()
                raise StopIteration
            self._follow_dataset()
            data = self._by_torch() if self._queue[0][0] is None else self._by_engine()
            data = self._accept(data)
            if data is not NOTHING:
                return data

    def _by_torch(self) -> Any:
        _, indices, _ = self._queue[0]
        try:
            with self._callers_generators():
                data = self._place(self._fetch(indices))
        except Exception:
            self._turn_over()
            raise
        self._turn_over()  # not after Ctrl-C: the batch is still to come
        return data

    def _turn_over(self) -> None:
        self._queue.popleft()
        self._progress.count()

    def _by_engine(self) -> Any:
        self._follow_generator()
        while self._calm >= _CALM and len(self._queue) <= self._max_ahead and self._pull():
            pass
        batch = self._wait()
        data = self._deliver(batch)
        self._turn_over()
        if self._random:
            state = self._state.numpy()
            batch.random_after.to_torch_state(state)
            torch.set_rng_state(self._state)
            self._left = state.tobytes()
        return data

    def _ahead_on_device(self, loader: "DataLoader[Any]") -> int:
        # Those taken from the engine could not be planned again when the caller has drawn.
        return 1

    def _expected(self) -> int:
        return sum(batch is not None for batch, _, _ in self._queue)

    def _asked(self, question: Question) -> Any:
        return next(indices for batch, indices, _ in self._queue if batch == question.batch)

    def _failure(self, batch: int, error: Exception, note: Any) -> Failure:
        return Failure(error, note)
