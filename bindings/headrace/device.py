"""Batches on a GPU: torch's memory, headrace's copies.

Memory on the device is torch's, allocated on the consumer's thread with its stream current. The C++
side copies on a stream of its own and makes the consumer's stream wait; the host waits for nothing.
"""

import warnings
from collections import deque
from typing import Any

import torch
from torch.profiler import record_function
from torch.utils.data._utils.pin_memory import pin_memory

from headrace._core import Batch, BufferPool, DeviceCopier, PinnedAllocator, Transform


def normalise(device: Any) -> torch.device | None:
    """The CUDA device that is meant; None where batches stay on the CPU.

    Raises:
        ValueError: a device of another kind.
        RuntimeError: torch's, for what is no device at all.
    """
    if device is None:
        return None
    meant: torch.device = torch.device(device)
    if meant.type == "cpu":
        return None
    if meant.type != "cuda":
        raise ValueError(f'device must be a CUDA device, "cpu" or None; got {device!r}')
    return meant


class TorchDevice:
    """All that headrace asks torch about one CUDA device. (Tests put another in its place.)

    Raises:
        RuntimeError, AssertionError: torch's own, where there is no such device or no CUDA.
    """

    def __init__(self, device: torch.device) -> None:
        torch.empty(0, device=device)  # the error, and what torch does at a first use
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", index)

    @property
    def index(self) -> int:
        """Among the devices that CUDA_VISIBLE_DEVICES leaves."""
        index: int = self.device.index
        return index

    def empty(
        self, shape: tuple[int, ...], dtype: torch.dtype, memory_format: torch.memory_format
    ) -> torch.Tensor:
        """Memory of torch's caching allocator, on the device's current stream."""
        return torch.empty(shape, dtype=dtype, device=self.device, memory_format=memory_format)

    def current_stream(self) -> int:
        """The handle of the consumer's stream."""
        handle: int = torch.cuda.current_stream(self.device).cuda_stream
        return handle

    def record_current_stream(self, tensor: torch.Tensor) -> None:
        """Says that the current stream uses memory of another one."""
        tensor.record_stream(torch.cuda.current_stream(self.device))

    def constant(self, values: torch.Tensor) -> torch.Tensor:
        """A copy on the device, there when this returns: for any stream."""
        return values.to(self.device)

    def move(self, data: Any) -> Any:
        """A batch that did not come from the engine, with its tensors on the device."""
        return _to(pin_memory(data), self.device)


def _to(data: Any, device: torch.device) -> Any:
    if isinstance(data, torch.Tensor):
        return data.to(device, non_blocking=True)
    if isinstance(data, dict):
        return type(data)({key: _to(value, device) for key, value in data.items()})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(_to(value, device) for value in data))
    if type(data) in (list, tuple):
        return type(data)(_to(value, device) for value in data)
    return data


def finish_pixels(
    pixels: torch.Tensor,
    mirrored: torch.Tensor,
    table: torch.Tensor,
    memory_format: torch.memory_format,
) -> torch.Tensor:
    """What the kernel does, by torch: where the kernel cannot be had.

    Args:
        pixels: uint8 [batch, 3, height, width].
        mirrored: uint8 [batch]; not 0: the image is mirrored left to right.
        table: [3, 256]; for each channel, what each value becomes.
        memory_format: of the result.

    Returns:
        [batch, 3, height, width] of the table's dtype; its values are copied from there.
    """
    flip = mirrored.bool().view(-1, 1, 1, 1)
    index = torch.where(flip, pixels.flip(3), pixels).int()
    result = torch.empty(
        pixels.shape, dtype=table.dtype, device=pixels.device, memory_format=memory_format
    )
    for channel, values in enumerate(table):
        result[:, channel] = values[index[:, channel]]
    return result


class DeviceFeed:
    """The batches between the engine and the consumer: on their way to the device, or there.

    Args:
        device: where to.
        transform: the engine's; a split one is finished on the device.
        ahead: batches at most.
        memory_format: of the finished images.
        pinned: the allocator of the engine's memory.
    """

    def __init__(
        self,
        device: TorchDevice,
        transform: Transform,
        ahead: int,
        memory_format: torch.memory_format,
        pinned: PinnedAllocator,
    ) -> None:
        self._device = device
        self._memory_format = memory_format
        self._ahead = ahead
        self._pinned = pinned
        self._copier = DeviceCopier(device.index, ahead, transform)
        self._table: torch.Tensor | None = None
        if transform.finish is not None and self._copier.stats()["finish"] != "kernel":
            dtype, values = transform.finish
            table = torch.frombuffer(bytearray(values), dtype=getattr(torch, dtype))
            self._table = device.constant(table.view(3, 256))
        self._warned = False
        # Oldest first: the batch, its tensors and the stream that they were allocated on. A batch
        # without data has none.
        self._queue: deque[tuple[Batch, list[torch.Tensor], int]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def full(self) -> bool:
        """Whether take() must come before the next put()."""
        return len(self._queue) >= self._ahead

    def put(self, batch: Batch) -> None:
        """Begins the copy of a batch of the engine's."""
        tensors: list[torch.Tensor] = []
        stream = self._device.current_stream()
        if batch.has_fields:
            with record_function("headrace: copy a batch to the device"):
                for dtype, shape, channels_last in self._copier.outputs(batch):
                    form = torch.channels_last if channels_last else torch.contiguous_format
                    tensors.append(self._device.empty(shape, getattr(torch, dtype), form))
                self._copier.submit(batch, [tensor.data_ptr() for tensor in tensors], stream)
            self._warn_of_pageable_memory()
        self._queue.append((batch, tensors, stream))

    def take(self) -> tuple[Batch, list[torch.Tensor]]:
        """The oldest batch; the consumer's current stream waits until it is there."""
        batch, tensors, allocated_on = self._queue[0]
        if tensors:
            stream = self._device.current_stream()
            self._copier.next(stream)
            if stream != allocated_on:
                for tensor in tensors:
                    self._device.record_current_stream(tensor)
            if self._table is not None:
                self._device.record_current_stream(self._table)
                pixels, labels, mirrored = tensors
                with record_function("headrace: finish the pixels"):
                    images = finish_pixels(pixels, mirrored, self._table, self._memory_format)
                tensors = [images, labels]
        self._queue.popleft()
        return batch, tensors

    def close(self) -> None:
        """Waits for the copies under way, and lets go of their memory. Idempotent."""
        self._copier.stop()
        self._queue.clear()

    def stats(self) -> dict[str, Any]:
        """See DataLoader.stats(), "device"."""
        stats = self._copier.stats()
        copy_ns = stats["copy_ns"]
        return {
            **stats,
            "bytes_per_s": stats["bytes"] * 1e9 / copy_ns if copy_ns else 0.0,
            "overlap": 1 - min(1, stats["wait_ns"] / copy_ns) if copy_ns else 0.0,
            **self._pinned.stats(),
        }

    def _warn_of_pageable_memory(self) -> None:
        if not self._warned and self._pinned.stats()["pageable_bytes"]:
            self._warned = True
            warnings.warn(
                "headrace: pinned memory ran short, so that some batches lie in pageable memory: "
                "copies of those are slower, and may make the host wait. Lower prefetch_factor, "
                "num_workers or batch_size, or raise the limit of locked memory (ulimit -l)",
                stacklevel=2,
            )


class PinnedPool:
    """Pinned memory for the engines of one loader, by the context of one device."""

    def __init__(self, device: int, max_idle: int) -> None:
        self.allocator = PinnedAllocator(device)
        self.pool = BufferPool(max_idle, self.allocator)
