"""Batches in torch's own pinned memory, for pin_memory=True.

torch cannot tell us when a copy with non_blocking=True ends, but its own allocator knows: so the
engine writes straight into memory of that allocator, and what is delivered are torch's tensors.
"""

from collections.abc import Callable

import torch

from headrace._core import BufferPool, OfferedMemory, Transform

_PAGE_BYTES = 4096  # the engine asks for whole pages


def pinned_bytes(count: int) -> torch.Tensor:
    """So many bytes of pinned memory."""
    return torch.empty(count, dtype=torch.uint8, pin_memory=True)


class PinnedBatches:
    """The memory of batches in flight.

    Args:
        transform: the engine's.
        memory_format: of its images.
        allocate: gives pinned memory, a number of bytes.
    """

    def __init__(
        self,
        transform: Transform,
        memory_format: torch.memory_format,
        allocate: Callable[[int], torch.Tensor],
    ) -> None:
        _, dtype, shape = transform.output
        self._image = getattr(torch, dtype), shape
        self._memory_format = memory_format
        self._allocate = allocate
        self._offered = OfferedMemory()
        self.pool = BufferPool(max_idle=0, pinned=None, offered=self._offered)
        self._batches: dict[int, list[torch.Tensor]] = {}

    def offer(self, rows: int) -> list[torch.Tensor]:
        """Memory for the next batch; to be kept by keep() once that has an id."""
        self._offered.withdraw()
        dtype, shape = self._image
        return [
            self._tensor((rows, *shape), dtype, self._memory_format),
            self._tensor((rows,), torch.int64, torch.contiguous_format),
        ]

    def _tensor(
        self, shape: tuple[int, ...], dtype: torch.dtype, memory_format: torch.memory_format
    ) -> torch.Tensor:
        form = torch.empty(shape, dtype=dtype, memory_format=memory_format, device="meta")
        size = -(-form.nbytes // _PAGE_BYTES) * _PAGE_BYTES
        block = self._allocate(size)
        self._offered.offer(block.data_ptr(), size)
        return block[: form.nbytes].view(dtype).as_strided(shape, form.stride())

    def keep(self, batch: int, tensors: list[torch.Tensor]) -> None:
        """Until take()."""
        self._batches[batch] = tensors

    def take(self, batch: int, rows: int) -> list[torch.Tensor]:
        """The tensors of a finished batch; the rows behind those are left out."""
        return [tensor[:rows] for tensor in self._batches.pop(batch)]

    def forget(self, batch: int) -> None:
        """Of a batch that has no data, or is not wanted."""
        self._batches.pop(batch, None)
