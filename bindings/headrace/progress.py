"""How far an epoch has come: what a checkpoint in mid-epoch consists of.

Batches count when their turn is over: when they were yielded, raised, or left out for want of
samples; never when they were only prefetched.
"""

import zlib
from array import array
from collections import deque
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from torch.utils.data import BatchSampler

from headrace import random_states
from headrace._core import Error, RandomStream
from headrace.random_states import State
from headrace.sample_rules import Request, SampleRules

# Keys of the epoch's order that a sample may be replaced with.
_RECENT = 1024


class Progress:
    """One epoch of a loader, from iter() on.

    Attributes:
        epoch: counted from 0.
        seed: for rng="counter".
        batches: how many count.
        finished: whether the epoch is over.
        workers: by worker, its generators after its last batch that counts; None for one that is
            fresh. None instead of the list: not known.
        any_order: batches come in any order, so that those that count are not the first ones.

    Args:
        loader: the loader.
        epoch, seed: see above.
        point: where another run of this epoch was left, as :meth:`point` gave it.
    """

    def __init__(
        self, loader: Any, epoch: int, seed: int, point: dict[str, Any] | None = None
    ) -> None:
        self.epoch = epoch
        self.seed = seed
        self.batches = 0
        self.finished = False
        self.any_order = False
        self.workers: list[State | RandomStream | None] | None = [None] * loader.num_workers
        self._num_workers = loader.num_workers
        self._rules: SampleRules = loader.sample_rules
        self._single_keys = loader.batch_sampler is None
        self._generators = random_states.of_loader(loader)
        self._first_pull: State | None = None
        self._checksum = 0
        # Of each batch that was pulled and does not count yet: the sampler's state after it, the
        # checksum of all keys up to it, and whether it is the last, of which the state is before.
        self._pulled: deque[tuple[Any, int, bool]] = deque()
        self._last_counts = False
        self._next_batch = 0
        self._next_checksum = 0
        self._recent: deque[Any] = deque(maxlen=_RECENT)
        # With on_error="replace": the same up to the latest batch that counts, and the keys of each
        # batch since then.
        self._recent_at_point: deque[Any] = deque(maxlen=_RECENT)
        self._pulled_keys: deque[list[Any]] = deque()
        self._sent_to: set[int] = set()
        self._point = point
        self._sampler = stateful_sampler(loader)
        batch_sampler = loader.batch_sampler
        self._full_batch = batch_sampler.batch_size if type(batch_sampler) is BatchSampler else 0
        if point is not None:
            if not self._rules.counter:
                self.workers = list(point["workers"])
            if self._sampler is not None:
                self.place_sampler()
                self._last_counts = point["last_counts"]
                self.batches = self._next_batch = point["batches"]
                self._checksum = self._next_checksum = point["checksum"]
                self._recent.extend(point.get("recent", ()))
                self._recent_at_point.extend(self._recent)
            if point["begin"] is not None:
                random_states.restore(point["begin"], self._generators)
        self._sampler_state = self._ask_sampler_for_next()
        self._begin = random_states.capture(self._generators)

    # --- pulling the sampler --------------------------------------------------------------------

    def place_sampler(self) -> None:
        """Puts a sampler that keeps its place to where the other run was left: before each iter(),
        of which torch makes two, and nothing says which of them moves the sampler."""
        if self._point is None or self._sampler is None:
            return
        state = self._point["sampler"]
        self._sampler.load_state_dict(deepcopy(state))
        if self._point["batches"] or hasattr(self._sampler, "next_state_dict"):
            return
        # At an epoch's beginning the place may still be the end of the one before, from where an
        # iteration has nothing to give: that is then done with.
        with random_states.undisturbed(self._generators):
            if next(iter(self._sampler), self) is not self:
                self._sampler.load_state_dict(deepcopy(state))

    def pull(self, batches: Iterator[Any]) -> Any:
        """The sampler's next batch: as it is, or as a Request where there are rules.

        Raises:
            StopIteration: it has none.
            Error: it does not lead to where the other run was left.
        """
        self.fast_forward(batches)
        return self._take(next(batches))

    def fast_forward(self, batches: Iterator[Any]) -> None:
        """Takes the sampler to where the other run was left: once, before anything is pulled."""
        point, self._point = self._point, None
        if point is not None and point["first_pull"] is not None:
            random_states.restore(point["first_pull"], self._generators)
        if self._first_pull is None:
            self._first_pull = random_states.capture(self._generators)
        if point is None:
            return
        if self._sampler is not None:
            if self._last_counts:
                deque(batches, maxlen=0)  # what is left is the last batch, which was yielded
            return
        for _ in range(point["batches"]):
            try:
                self._take(next(batches))
            except StopIteration:
                break
            self._count()
        self._sent_to.clear()  # those batches go to nobody
        if (self.batches, self._checksum) != (point["batches"], point["checksum"]):
            raise Error(
                f"load_state_dict: the sampler's first {point['batches']} batches are others than "
                "in the run that was saved, so that samples would be lost or repeated. Make the "
                "sampler as it was (its seed, set_epoch), or give it state_dict() and "
                "load_state_dict()"
            )

    @property
    def pulls_at_once(self) -> bool:
        """Whether the sampler is still to be taken to where the other run was left."""
        return self._point is not None and bool(self._point["first_pull"])

    @property
    def counter(self) -> bool:
        """Whether samples have random streams of their own."""
        return self._rules.counter

    @property
    def pulled(self) -> int:
        """Batches pulled so far."""
        return self._next_batch

    def _take(self, keys: Any) -> Any:
        batch, self._next_batch = self._next_batch, self._next_batch + 1
        if type(keys) in (list, tuple, int):  # others may not be read twice
            self._next_checksum = zlib.crc32(_bytes_of(keys), self._next_checksum)
        before = self._pulled[-1][0] if self._pulled else self._sampler_state
        last = self._forgets_its_end(keys)
        state = before if last else self._ask_sampler()
        self._pulled.append((state, self._next_checksum, last))
        return keys if self._rules.plain else self._request(batch, keys)

    def _request(self, batch: int, keys: Any) -> Request:
        request = Request([keys] if self._single_keys else keys)
        request.batch, request.epoch, request.seed = batch, self.epoch, self.seed
        if self._rules.on_error == "replace":
            self._recent.extend(request)
            self._pulled_keys.append(list(request))
            request.recent = tuple(self._recent)
        if self._rules.keep_states and self.workers:
            worker = batch % self._num_workers
            if worker not in self._sent_to:
                self._sent_to.add(worker)
                request.state = _plain(self.workers[worker])
        return request

    def _ask_sampler(self) -> Any:
        return None if self._sampler is None else deepcopy(self._sampler.state_dict())

    def _forgets_its_end(self, keys: Any) -> bool:
        """Whether the sampler's state after this batch may be that of its beginning.

        A batch that is not full took it to its end, where its own place may be forgotten.
        """
        if self._sampler is None or hasattr(self._sampler, "next_state_dict"):
            return False
        return self._full_batch > 0 and len(keys) < self._full_batch

    def _ask_sampler_for_next(self) -> Any:
        """Where its next iteration begins. One that cannot say so is there once it has ended."""
        if not hasattr(self._sampler, "next_state_dict"):
            return self._ask_sampler()
        return deepcopy(self._sampler.next_state_dict())

    # --- counting -------------------------------------------------------------------------------

    def count(self, worker_state: State | RandomStream | None = None) -> None:
        """The turn of the oldest batch that was pulled is over, and so stand its generators."""
        if self.workers and not self._rules.counter:
            if worker_state is None or self.any_order:
                self.workers = None
            else:
                self.workers[self.batches % self._num_workers] = worker_state
        self._count()

    def finish(self) -> None:
        """The epoch is over."""
        self.finished, self._last_counts = True, False
        self._sampler_state = self._ask_sampler_for_next()

    def _count(self) -> None:
        self._sampler_state, self._checksum, self._last_counts = self._pulled.popleft()
        self.batches += 1
        if self._pulled_keys:
            self._recent_at_point.extend(self._pulled_keys.popleft())

    def point(self) -> dict[str, Any]:
        """Where the epoch is left, as plain data."""
        return {
            "batches": self.batches,
            "checksum": self._checksum,
            "begin": self._begin,
            "first_pull": self._first_pull,
            "sampler": self._sampler_state,
            "last_counts": self._last_counts,
            # A sampler that keeps its own place does not give them again.
            "recent": [] if self._sampler is None else list(self._recent_at_point),
            "workers": None if self.workers is None else [_plain(each) for each in self.workers],
        }


class TrackedSampler:
    """A loader's index sampler for torch's iterators, which keeps account of what they pull."""

    def __init__(self, sampler: Any, progress: Progress) -> None:
        self._sampler = sampler
        self.progress = progress

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> "Pulls":
        self.progress.place_sampler()
        return Pulls(iter(self._sampler), self)


class Pulls:
    """An iterator of a TrackedSampler."""

    def __init__(self, batches: Iterator[Any], tracked: TrackedSampler) -> None:
        self._batches = batches
        self._tracked = tracked

    def __iter__(self) -> "Pulls":
        return self

    def __next__(self) -> Any:
        return self._tracked.progress.pull(self._batches)

    def fast_forward(self) -> None:
        """See :meth:`Progress.fast_forward`."""
        self._tracked.progress.fast_forward(self._batches)


def track(batches: Any, sampler: Any, progress: Progress) -> tuple[Pulls, TrackedSampler]:
    """What stands for an index sampler and an iterator that was made of it."""
    tracked = TrackedSampler(sampler, progress)
    return Pulls(batches, tracked), tracked


def stateful_sampler(loader: Any) -> Any:
    """The sampler that keeps its place itself: the first with state_dict and load_state_dict."""
    batch_sampler = loader.batch_sampler
    for each in (batch_sampler, getattr(batch_sampler, "sampler", None), loader.sampler):
        if hasattr(each, "state_dict") and hasattr(each, "load_state_dict"):
            return each
    return None


def _bytes_of(keys: Any) -> Any:
    """What tells a batch's keys from others. What they raise, they raise in their batch's turn."""
    try:
        return array("q", [-1, keys] if type(keys) is int else [len(keys), *keys])
    except Exception:  # not all of them are whole numbers
        pass
    try:
        return repr(keys).encode()
    except Exception:
        return b""


def _plain(state: State | RandomStream | None) -> State | None:
    return random_states.of_stream(state) if isinstance(state, RandomStream) else state
