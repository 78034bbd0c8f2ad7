"""headrace's DataLoader: torch's, done in C++ wherever that gives the same bits."""

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
import torch.utils.data
from torch.utils.data import Dataset, Sampler

from headrace._core import BufferPool, Engine, default_threads
from headrace.device import DeviceFeed, PinnedPool, TorchDevice, normalise
from headrace.main_iterator import MainProcessIterator
from headrace.output import Output
from headrace.rebuilt import AskedByAccelerate
from headrace.report import in_words
from headrace.route import Explanation, decide
from headrace.torch_iterator import converting_iterator
from headrace.worker_init import BegunByTorch
from headrace.worker_iterator import WorkerIterator

T_co = TypeVar("T_co", covariant=True)


class DataLoader(torch.utils.data.DataLoader[T_co]):
    """Takes the place of :class:`torch.utils.data.DataLoader`; the same batches, bit for bit.

    For torchvision's ImageFolder (and Subset of it) with torchvision's transforms, batches are made
    by threads in C++. Everything else runs on torch's own workers, unchanged. :meth:`explain` says
    which path is taken.

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
            (`stats()["reader_note"]` says so); "auto": "pread", the faster one where measured.
        dtype: what images of floating point are rounded to, such as torch.bfloat16: the exact
            conversion of what the transform gives. None: left as they are.
        memory_format: of the images, torch.contiguous_format or torch.channels_last.

        device: the CUDA device that batches are delivered on, such as "cuda:0"; None or "cpu": they
            stay on the CPU. On the native path uint8 pixels travel, copied by a stream of
            headrace's own from pinned memory, and are finished on the device, bit for bit as on the
            CPU; next() makes the current stream wait, not the host. On torch's path torch copies.
        prefetch_to_device: batches that may be on the device, or on their way there, before they
            are asked for. With num_workers=0 it is one, copied when it is asked for.

    Raises:
        ValueError, TypeError: as torch's constructor; and for `threads` or `read_budget_bytes`
            below 1, `reserve_cpus` below 0, an unknown `reader`, or a `dtype` or `memory_format`
            that images cannot have.

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
            `reader`, and `reader_note`: why it is not the one asked for, or empty; `read_depth`
            and `read_ahead_bytes`: reads in flight and bytes read ahead at most, which follow from
            what decoding needs; `threads`, `io_threads`; `stages`: for "read", "decode" and
            "transform" the `items` and `bytes` that passed, `busy_ns` and `waiting_ns`
            (nanoseconds, summed over threads); `batches` handed out; `consumer_wait_ns`: how long
            next() waited in all; `wall_ns`: from the beginning to the end of the latest next();
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

    def __iter__(self) -> Any:
        # A persistent iterator: one that cannot go on would never be replaced.
        if isinstance(self._iterator, WorkerIterator) and not self._iterator.usable:
            self._iterator = None
        return super().__iter__()

    def _get_iterator(self) -> Any:
        explanation, recipe = decide(self)
        if not explanation.native:
            as_torch = self.output.plain and normalise(self.device) is None
            return super()._get_iterator() if as_torch else converting_iterator(self)
        if self.num_workers == 0:
            return MainProcessIterator(self, recipe)
        if self.worker_init_fn is None:
            return WorkerIterator(self, recipe)
        self.check_worker_number_rationality()
        begun = BegunByTorch(self)
        if begun.refusal is not None:
            self._refused_init = self.worker_init_fn, begun.refusal
            return begun
        return WorkerIterator(self, recipe, begun)

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
        return state
