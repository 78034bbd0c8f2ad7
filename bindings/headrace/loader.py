"""headrace's DataLoader: torch's, done in C++ wherever that gives the same bits."""

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
import torch.utils.data
from torch.utils.data import Dataset, Sampler

from headrace import checkpoint, random_states
from headrace._core import BufferPool, Engine, Error, default_threads
from headrace.device import DeviceFeed, PinnedPool, TorchDevice, normalise
from headrace.error_log import ErrorLog, SampleError
from headrace.fingerprints import fingerprint
from headrace.main_iterator import MainProcessIterator
from headrace.output import Output
from headrace.progress import Progress
from headrace.rebuilt import AskedByAccelerate
from headrace.report import in_words
from headrace.route import Explanation, decide
from headrace.sample_rules import SampleRules
from headrace.torch_iterator import torch_iterator
from headrace.worker_init import BegunByTorch
from headrace.worker_iterator import WorkerIterator

T_co = TypeVar("T_co", covariant=True)


class DataLoader(torch.utils.data.DataLoader[T_co]):
    """Takes the place of :class:`torch.utils.data.DataLoader`; the same batches, bit for bit.

    For image folders, lists of images and a few more datasets, with torchvision's transforms,
    batches are made by threads in C++. Everything else runs on torch's own workers, unchanged.
    :meth:`explain` says which path is taken.

    Args:
        dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory,
            drop_last, timeout, worker_init_fn, multiprocessing_context, generator,
            prefetch_factor, persistent_workers, pin_memory_device, in_order: as torch's. On the
            native path `num_workers` names random streams, no processes: the batches are those that
            torch gives with as many workers.
        threads: decoding threads on the native path. None: as many as this process may use cores:
            those of its affinity, or of its control group's quota where that is less, divided by
            LOCAL_WORLD_SIZE, the ranks on this machine; less `reserve_cpus`.
        reserve_cpus: cores left to the training where `threads` is None.
        read_budget_bytes: compressed bytes read ahead at most, in bytes.
        reader: what reads files. "pread": threads; "io_uring": the kernel, for many files at a
            time, or "pread" where that is forbidden, as it often is in containers
            (`stats()["reader_note"]` says so); "auto": the first reads of a process, 80 or more of
            each, are shared out between both, and the one that takes less time and CPU for a byte
            is kept (`reader_note` has the figures). What is read does not depend on it.
        dtype: what images of floating point are rounded to, such as torch.bfloat16: the exact
            conversion of what the transform gives. None: left as they are.
        memory_format: of the images, torch.contiguous_format or torch.channels_last.
        on_error: what happens when a sample cannot be loaded. "raise": as in torch, its batch's
            turn raises. "skip": its batch is shorter by it; a batch of which nothing is left is
            left out, but raises headrace.Error where torch.distributed has several ranks, which
            are to make equally many steps. "replace": another sample takes its row, drawn from the
            latest 1,024 of the epoch's order up to its batch; the draw is fixed by the order alone.
            Draws of the generators that were made before a failure stay made. See :meth:`errors`.
        max_errors: with "skip" and "replace", so many samples that cannot be loaded are borne in
            the loader's life; the next one raises headrace.Error. None: any number.
        rng: "torch": samples draw from their workers' streams, as in torch. "counter": each sample
            draws from a stream of its own, given by seed, epoch and its key in the dataset (a whole
            number), whatever the number of workers, the ranks, the batches and how often training
            was resumed. Torch's generator gets the words of Philox4x32-10 with the key `seed` and
            the counters (block, epoch, index), Python's and numpy's are seeded from it, and the
            caller's are left alone. Both paths give the same.
        seed: for rng="counter". None: that of `generator`, or torch.initial_seed(), at iter().
        resumable: lets torch's own workers send their random states along with each batch, so that
            :meth:`state_dict` is exact there too. The native path needs no such thing.
        device: the CUDA device that batches are delivered on, such as "cuda:0"; None or "cpu": they
            stay on the CPU. On the native path uint8 pixels travel, copied by a stream of
            headrace's own from pinned memory, and are finished on the device, bit for bit as on the
            CPU; next() makes the current stream wait, not the host. On torch's path torch copies.
        prefetch_to_device: batches that may be on the device, or on their way there, before they
            are asked for. With num_workers=0 it is one, copied when it is asked for.

    Raises:
        ValueError, TypeError: as torch's constructor; and for `threads` or `read_budget_bytes`
            below 1, `reserve_cpus` below 0, an unknown `reader`, a `dtype` or `memory_format` that
            images cannot have, an `on_error` or `rng` that there is not, or one of the latter with
            an IterableDataset.

    Iteration yields `[images, labels]`: on the native path images of shape [batch, 3, height,
    width], of the transform's dtype or `dtype`, and int64 labels of shape [batch], on the CPU.
    Their memory is theirs for as long as they are held, and is used again when they are freed.
    """

    _is_accelerate_prepared = AskedByAccelerate()

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[T_co]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        threads: int | None = None,
        reserve_cpus: int = 0,
        read_budget_bytes: int = 64 << 20,
        reader: str = "auto",
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
        device: torch.device | str | int | None = None,
        prefetch_to_device: int = 2,
        on_error: str = "raise",
        max_errors: int | None = None,
        rng: str = "torch",
        seed: int | None = None,
        resumable: bool = False,
        **newer: Any,
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, or None for all cores; got {threads}")
        if reserve_cpus < 0:
            raise ValueError(f"reserve_cpus must be at least 0; got {reserve_cpus}")
        if read_budget_bytes < 1:
            raise ValueError(f"read_budget_bytes must be at least 1; got {read_budget_bytes}")
        if prefetch_to_device < 1:
            raise ValueError(f"prefetch_to_device must be at least 1; got {prefetch_to_device}")
        normalise(device)  # refuses bad values
        self.device = device
        self.prefetch_to_device = prefetch_to_device
        self.threads = threads
        self.reserve_cpus = reserve_cpus
        if reader not in ("auto", "io_uring", "pread"):
            raise ValueError(f"reader must be 'auto', 'io_uring' or 'pread'; got {reader!r}")
        self.read_budget_bytes = read_budget_bytes
        self.reader = reader
        self.dtype = dtype
        self.memory_format = memory_format
        self.output  # noqa: B018  refuses bad values
        if on_error not in ("raise", "skip", "replace"):
            raise ValueError(f"on_error must be 'raise', 'skip' or 'replace'; got {on_error!r}")
        if max_errors is not None and max_errors < 0:
            raise ValueError(f"max_errors must not be negative; got {max_errors}")
        if rng not in ("torch", "counter"):
            raise ValueError(f"rng must be 'torch' or 'counter'; got {rng!r}")
        if seed is not None and rng != "counter":
            raise ValueError('seed is for rng="counter"; seed torch\'s generator instead')
        if seed is not None and not 0 <= seed < 2**64:
            raise ValueError(f"seed must be at least 0 and below 2**64; got {seed}")
        self.on_error = on_error
        self.max_errors = max_errors
        self.rng = rng
        self.seed = seed
        self.resumable = resumable
        self._errors = ErrorLog("skipped" if on_error == "skip" else "replaced", max_errors)
        # The epoch that the next iter() begins, what its latest one has come to, and what it is to
        # go on from.
        self._epoch = 0
        self._progress: Progress | None = None
        self._resume: checkpoint.Resume | None = None
        # With rng="counter": the process's seed at load_state_dict(), and that of the saved run.
        self._seeds: tuple[int, int | None] = (0, None)
        self._pool: tuple[int, BufferPool] | None = None
        # Arguments of a torch that is newer than headrace; torch itself refuses what it has not.
        self._newer_arguments = newer
        # A worker_init_fn that was tried, and why it keeps torch's workers.
        self._refused_init: tuple[Any, str] = (None, "")
        self._pinned: tuple[int, PinnedPool] | None = None
        self._last_feed: DeviceFeed | None = None
        self._last_engine: Engine | None = None  # not the iterator: that lives as its user wants
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
            **newer,
        )
        if not (self.is_map_style or self.sample_rules.plain):
            raise ValueError(
                "on_error, rng='counter' and resumable are for datasets with keys; got an "
                "IterableDataset, whose order and state are its own"
            )

    def explain(self) -> Explanation:
        """Prints which path the next iteration takes and the first object that decided it.

        Returns:
            The same as an object: `path` ("native" or "torch"), `reason`, `culprit`.
        """
        explanation, _ = decide(self)
        print(explanation)
        return explanation

    def stats(self) -> dict[str, Any]:
        """Counters of the latest native iteration, running or over; empty before one.

        Returns:
            `reader`, and `reader_note`: why it is not the one asked for, what "auto" measured, or
            empty; `read_depth` and `read_ahead_bytes`: reads in flight and bytes read ahead at
            most, which follow from what decoding needs; `threads`, `io_threads`; `stages`: for
            "read", "decode" and "transform" the `items` and `bytes` that passed, `busy_ns` and
            `waiting_ns` (nanoseconds, summed over threads); `batches` handed out;
            `consumer_wait_ns`: how long next() waited in all; `wall_ns`: from the beginning to the
            end of the latest next();
            `ready_batches_sum`: ready batches seen by each next(), summed (divide by `batches` for
            the mean: near 0 means that the loader is the bottleneck);
            `questions`: samples that torch and Pillow computed; `rollbacks`: times that planned
            draws were taken back.
            With a device also `device`: `batches` and `bytes` whose copies are over and measured,
            `copy_ns` that they took and `wait_ns` that the consumer's stream waited for them, by
            the device's clock (nanoseconds); hence `bytes_per_s` and `overlap`, the share of the
            copying that nobody waited for; `host_waits` and `host_wait_ns`: next() ran so far ahead
            of the device that it was held up; `finish`: "kernel", "none" if there is nothing to
            finish, else why torch does it; `pinned_bytes` and `pageable_bytes` of batches' memory.
        """
        if self._last_engine is None:
            return {}
        stats = self._last_engine.stats()
        return stats if self._last_feed is None else {**stats, "device": self._last_feed.stats()}

    def report(self) -> str:
        """The counters of :meth:`stats` in words: the stage that limits, and what would help.

        Prints and returns it.
        """
        text = in_words(self.stats(), len(os.sched_getaffinity(0)))
        print(text)
        return text

    def fingerprint(self) -> str:
        """A hash over the batches of one epoch: that of :func:`headrace.fingerprint`.

        Iterates once, with all that this does to random generators and to the epoch's number. To
        compare two runs, call it on a loader of its own, or after torch.manual_seed().
        """
        return fingerprint(self)

    # --- bad samples ----------------------------------------------------------------------------

    def errors(self) -> list[SampleError]:
        """The samples that could not be loaded and were skipped or replaced, in batch order.

        Returns:
            The first 1,000 of the loader's life; :attr:`error_count` counts all of them.
        """
        return list(self._errors.events)

    @property
    def error_count(self) -> int:
        """How many samples could not be loaded and were skipped or replaced so far."""
        return self._errors.count

    # --- epochs and checkpoints -----------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next iter() begins, and tells the sampler. Without it they count up.

        Raises:
            Error: load_state_dict() has put the loader into the middle of another epoch.
        """
        resume = self._resume
        if resume is not None and resume.mid_epoch and resume.epoch != epoch:
            raise Error(
                f"set_epoch: load_state_dict() has put the loader into epoch {resume.epoch}, so "
                f"the next one cannot be {epoch}. Begin the loop of epochs at {resume.epoch}"
            )
        self._epoch = epoch
        sampler = checkpoint.epoch_sampler(self)
        if sampler is not None:
            sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the latest iteration stands: after the batches that it has yielded, not those that
        it has prefetched.

        With rng="torch" this includes the random states of the workers and where torch's default
        generator, Python's, numpy's and those of loader and sampler stand now. A sampler with
        state_dict() and load_state_dict() keeps its own place; any other is taken forward again.
        After such a sampler's end its next iteration is at the beginning, or where its
        next_state_dict() says, as that of headrace.ShardedSampler does.

        Returns:
            Plain data for :meth:`load_state_dict`: what JSON can hold (if the sampler's own is).

        Raises:
            Error: in mid-epoch, if several of torch's own workers give batches in any order
                (in_order=False).
        """
        return checkpoint.save(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets the next iter() go on where `state` was taken: with the rest of that epoch, or with
        the next epoch if it was over. Nothing that was yielded is read again.

        With rng="torch" that iter() also puts the generators named at :meth:`state_dict` to where
        they were then. With rng="counter" `num_workers` may be another, and so may the number of
        ranks with a sampler that keeps the place of all of them, such as headrace.ShardedSampler.

        Raises:
            Error: the loader is not like the one that was saved; or that one used torch's own
                workers in mid-epoch without `resumable`.
        """
        self._resume = checkpoint.load(self, state)
        self._seeds = self._initial_seed(), self._resume.seed
        self._epoch = self._resume.epoch
        self._errors.count = state["errors"]
        self._iterator = None

    @property
    def is_map_style(self) -> bool:
        """Whether the dataset has keys."""
        return not isinstance(self.dataset, torch.utils.data.IterableDataset)

    @property
    def sample_rules(self) -> SampleRules:
        """What is asked for beyond torch."""
        counter = self.rng == "counter"
        keep_states = self.resumable or self.on_error != "raise"
        return SampleRules(
            self.on_error, counter, keep_states and not counter and self.num_workers > 0
        )

    # --- iterators ------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        # A persistent iterator: one that cannot go on would never be replaced.
        if isinstance(self._iterator, WorkerIterator) and not self._iterator.usable:
            self._iterator = None
        last, resume = self._progress, self._resume
        generators = random_states.of_loader(self)
        if resume is not None and resume.generators is not None and not resume.mid_epoch:
            random_states.restore(resume.generators, generators)
        progress = Progress(
            self,
            self._epoch,
            self._counter_seed() if resume is None or resume.seed is None else resume.seed,
            None if resume is None else resume.point,
        )
        if self._iterator is not None:
            self._iterator.begin(progress)  # type: ignore[attr-defined]
        self._progress = progress
        try:
            iterator = super().__iter__()
            if resume is not None and resume.mid_epoch:
                if progress.pulls_at_once:
                    iterator._sampler_iter.fast_forward()
                if resume.generators is not None:
                    random_states.restore(resume.generators, generators)
        except BaseException:
            self._progress = last
            raise
        self._resume = None
        self._epoch = progress.epoch + 1
        return iterator

    def _counter_seed(self) -> int:
        if self.rng != "counter":
            return 0
        if self.seed is not None:
            return self.seed
        seed, (seed_at_load, saved) = self._initial_seed(), self._seeds
        # As long as nobody has seeded since, the run that was saved goes on.
        return saved if saved is not None and seed == seed_at_load else seed

    def _initial_seed(self) -> int:
        return (self.generator or torch.default_generator).initial_seed() % 2**64

    def _get_iterator(self) -> Any:
        explanation, recipe = decide(self)
        progress = self._progress
        assert progress is not None
        if not explanation.native:
            return torch_iterator(self, progress)
        if self.num_workers == 0:
            return MainProcessIterator(self, recipe, progress)
        if self.worker_init_fn is None:
            return WorkerIterator(self, recipe, progress)
        self.check_worker_number_rationality()
        begun = BegunByTorch(self, progress)
        if begun.refusal is not None:
            self._refused_init = self.worker_init_fn, begun.refusal
            return begun
        return WorkerIterator(self, recipe, progress, begun)

    @property
    def output(self) -> Output:
        """`dtype` and `memory_format`."""
        return Output(self.dtype, self.memory_format)

    def _thread_count(self) -> int:
        return self.threads or default_threads(self.reserve_cpus)

    def _buffer_pool(self) -> BufferPool:
        """One pool for all iterators; a forked child gets its own, since the lock of the parent's
        may have been held when the process was copied."""
        if self._pool is None or self._pool[0] != os.getpid():
            self._pool = (os.getpid(), BufferPool(self._max_idle()))
        return self._pool[1]

    def _max_idle(self) -> int:
        batches_in_flight = max(1, self.num_workers) * (self.prefetch_factor or 1)
        return 2 * (batches_in_flight + 8)

    def _torch_device(self) -> TorchDevice | None:
        """torch's side of `device`; torch's own error where it cannot be had."""
        device = normalise(self.device)
        return None if device is None else TorchDevice(device)

    def _pinned_pool(self, device: int) -> PinnedPool:
        """As _buffer_pool(), of pinned memory."""
        if self._pinned is None or self._pinned[0] != os.getpid():
            self._pinned = (os.getpid(), PinnedPool(device, self._max_idle()))
        return self._pinned[1]

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state["_pool"] = None
        state["_pinned"] = None
        state["_last_feed"] = None
        state["_last_engine"] = None
        state["_progress"] = None
        return state
