"""Rules for samples beyond torch's, the same on the native path and in torch's worker processes.

torch's fetcher loads a batch's samples from a dataset and hands them to a collate function. Where a
loader has such rules, :class:`RuledDataset` and :class:`RuledCollate` stand in for the two.
"""

import operator
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import Dataset, get_worker_info

from headrace import random_states
from headrace._core import Error, RandomStream, SampleKey, philox4x32
from headrace.error_log import SampleError
from headrace.failure import Failure
from headrace.samples import path_of

# Tries for a replacement before the batch fails.
_TRIES = 32

# A generator's state without a cached normal draw, to be given a stream's position.
_STATE = torch.Generator().manual_seed(0).get_state()

_MASK_64 = 2**64 - 1


@dataclass(frozen=True)
class SampleRules:
    """What is to be done with samples.

    Attributes:
        on_error: "raise", "skip" or "replace".
        counter: each sample draws from a stream of its own.
        keep_states: batches bring the random states of their worker along.
    """

    on_error: str = "raise"
    counter: bool = False
    keep_states: bool = False

    @property
    def plain(self) -> bool:
        """Whether all is as in torch."""
        return self == SampleRules()


class Request(list[Any]):
    """The keys of a batch, with what the rules need to know.

    Attributes:
        batch: its number in the epoch.
        epoch: counted from 0.
        seed: for rng="counter".
        recent: keys of the latest samples of the epoch's order, up to this batch's own: what a
            replacement is chosen from.
        state: where the worker's generators are to be put first; None: they stay.
    """

    batch: int = 0
    epoch: int = 0
    seed: int = 0
    recent: tuple[Any, ...] = ()
    state: random_states.State | None = None


@dataclass
class Loaded:
    """A batch between dataset and collate function."""

    samples: list[Any] = field(default_factory=list)
    errors: list[SampleError] = field(default_factory=list)
    failure: Failure | None = None


class Outcome(NamedTuple):
    """A batch on its way to the consumer.

    Attributes:
        data: as collated; None if nothing is left of it, or if it failed.
        empty: whether nothing is left of it.
        errors: samples that could not be loaded.
        failure: what was raised instead of it.
        state: the worker's generators after it; None if they are not to be known.
    """

    data: Any
    empty: bool
    errors: list[SampleError]
    failure: Failure | None = None
    state: random_states.State | None = None


class _Nothing:
    """What stands for a batch of which nothing is left."""


NOTHING = _Nothing()


def nothing_left(errors: list[SampleError]) -> _Nothing:
    """NOTHING, for a batch that is left out: `errors` are its samples.

    Raises:
        Error: other ranks have that batch, and would wait for this one at the epoch's end.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return NOTHING
    ranks = distributed.get_world_size()
    if ranks == 1:
        return NOTHING
    raise Error(
        f"errors: {errors[0].path} (sample {errors[0].index}): nothing is left of its batch, and "
        f"without it this rank makes a step less than the others of {ranks}, which would wait for "
        'it. Use on_error="replace" with several ranks'
    )


def failure_here(error: Exception) -> Failure:
    """`error`, which is being handled, as torch raises it when its batch has its turn."""
    info = get_worker_info()
    if info is None:
        return Failure(error, None)
    return Failure(ExceptionWrapper(where=f"in DataLoader worker process {info.id}"), None)


class RuledDataset(Dataset[Any]):
    """`dataset` for torch's fetcher, under `rules`: maps a Request to a Loaded.

    Args:
        dataset, rules: see above.
        fetch: in place of dataset[key].
        failure: what becomes of an exception that is being handled.
    """

    def __init__(
        self,
        dataset: Any,
        rules: SampleRules,
        fetch: Callable[[Any], Any] | None = None,
        failure: Callable[[Exception], Failure] = failure_here,
    ) -> None:
        self.dataset = dataset
        self.rules = rules
        self._fetch = fetch
        self._failure = failure

    def __getitems__(self, request: Request) -> Loaded:
        """A batch."""
        if request.state is not None:
            random_states.restore(request.state)
        loaded = Loaded()
        try:
            self._load(request, loaded)
        except Exception as error:
            loaded.failure = self._failure(error)
        return loaded

    __getitem__ = __getitems__  # torch's fetcher asks so with batch_size=None

    def _load(self, request: Request, loaded: Loaded) -> None:
        rules = self.rules
        batched = getattr(self.dataset, "__getitems__", None)
        if rules.on_error == "raise" and not rules.counter and batched:
            loaded.samples = batched(list(request))
            return
        for row in range(len(request)):
            sample = self.load_row(request, row, loaded.errors)
            if sample is not None:
                loaded.samples.append(sample.value)

    def load_row(self, request: Request, row: int, errors: list[SampleError]) -> "Row | None":
        """One sample, or what the rules put in its place; None if it is left out.

        Args:
            request, row: which one.
            errors: gets what could not be loaded on the way.

        Raises:
            Error: no replacement could be loaded either.
            Exception: with on_error="raise", whatever the dataset raises.
        """
        key = request[row]
        try:
            return Row(self._one(request, key), key)
        except MemoryError:  # says nothing about the sample
            raise
        except Exception as error:
            if self.rules.on_error == "raise":
                raise
            event = self._event(request, key, error)
        first = len(errors)
        errors.append(event)
        if self.rules.on_error == "skip":
            return None
        for attempt in range(_TRIES):
            spare = _spare(request, row, attempt)
            if any(spare == each.index for each in errors[first:]):
                continue
            try:
                value = self._one(request, spare)
            except MemoryError:
                raise
            except Exception as error:
                errors.append(self._event(request, spare, error))
            else:
                errors[first] = event._replace(replacement=spare)
                return Row(value, spare)
        raise Error(
            f"errors: {event.path} (sample {key}): {event.cause}; and of {len(request.recent)} "
            f"samples that could have replaced it {_TRIES} draws gave none that can be loaded. "
            'Repair or remove these files, or use on_error="skip"'
        )

    def _one(self, request: Request, key: Any) -> Any:
        if self.rules.counter:
            seed_generators(request.seed, request.epoch, key)
        return self.dataset[key] if self._fetch is None else self._fetch(key)

    def _event(self, request: Request, key: Any, error: Exception) -> SampleError:
        cause = f"{type(error).__name__}: {error}"
        path = path_of(self.dataset, key) or str(getattr(error, "filename", None) or "")
        return SampleError(path, key, cause, None, request.epoch, request.batch)


class Row(NamedTuple):
    """A loaded sample and its key."""

    value: Any
    key: Any


class RuledCollate:
    """`collate_fn` for torch's fetcher: maps a Loaded to an Outcome."""

    def __init__(
        self,
        collate_fn: Any,
        rules: SampleRules,
        single: bool,
        failure: Callable[[Exception], Failure] = failure_here,
    ) -> None:
        self._collate_fn = collate_fn
        self._rules = rules
        self._single = single  # batch_size=None
        self._failure = failure

    def __call__(self, loaded: Loaded) -> Outcome:
        """Collates what is left."""
        data, failure = None, loaded.failure
        empty = not loaded.samples and bool(loaded.errors)
        if failure is None and not empty:
            try:
                data = self._collate_fn(loaded.samples[0] if self._single else loaded.samples)
            except Exception as error:
                failure = self._failure(error)
        state = random_states.capture() if self._rules.keep_states else None
        return Outcome(data, empty, loaded.errors, failure, state)


class RuledInit:
    """`worker_init_fn` for torch's workers: get_worker_info() has the user's own dataset."""

    def __init__(self, init: Any) -> None:
        self._init = init

    def __call__(self, worker: int) -> None:
        """Runs the user's, if there is one."""
        info = get_worker_info()
        assert info is not None
        ruled: Any = info.dataset
        object.__setattr__(info, "dataset", ruled.dataset)  # it is frozen
        if self._init is not None:
            self._init(worker)


def random_keys(request: Request) -> list[SampleKey]:
    """Names the streams of a batch's samples."""
    return [SampleKey(request.seed, request.epoch, _counter_index(key)) for key in request]


def _counter_index(key: Any) -> int:
    try:
        return operator.index(key) & _MASK_64
    except TypeError:
        raise TypeError(
            f'rng="counter" needs datasets with integer keys, got {key!r}: use rng="torch"'
        ) from None


def seed_generators(seed: int, epoch: int, key: Any) -> None:
    """Puts torch's, Python's and numpy's generator to the stream of one sample."""
    index = _counter_index(key)
    state = _STATE.clone()
    RandomStream.of_sample(SampleKey(seed, epoch, index)).to_torch_state(state.numpy())
    torch.set_rng_state(state)
    # A block of the counter that torch's stream never gets to.
    words = philox4x32([2**32 - 1, epoch, index % 2**32, index >> 32], [seed % 2**32, seed >> 32])
    random.seed(sum(word << 32 * place for place, word in enumerate(words)))
    np.random.seed(words)  # noqa: NPY002  transforms have this one


def _spare(request: Request, row: int, attempt: int) -> Any:
    """The key that row's replacement is tried with: drawn by Philox, whatever drew the samples."""
    word = philox4x32([attempt, row, request.batch % 2**32, request.epoch], [0, 0])[0]
    return request.recent[word % len(request.recent)]
