"""torch's own iterators, for batches that are delivered otherwise than collated, or elsewhere."""

from typing import TYPE_CHECKING, Any

from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import (
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

if TYPE_CHECKING:
    from headrace.loader import DataLoader


class _Converting:
    """Converts what comes, on the consumer's thread."""

    def __init__(self, loader: "DataLoader[Any]") -> None:
        self._output = loader.output
        super().__init__(loader)  # type: ignore[call-arg]
        self._device = loader._torch_device()  # now that the workers are forked

    def _next_data(self) -> Any:
        data = self._output.batch(super()._next_data())  # type: ignore[misc]
        if self._device is not None:
            return self._device.move(data)
        if self._pin_memory:  # type: ignore[attr-defined]
            data = pin_memory(data, self._pin_memory_device)  # type: ignore[attr-defined]
        return data


class _ConvertingMainProcessIterator(_Converting, _SingleProcessDataLoaderIter): ...


class ConvertingWorkerIterator(_Converting, _MultiProcessingDataLoaderIter):
    """torch's iterator for num_workers > 0."""


def converting_iterator(loader: "DataLoader[Any]") -> Any:
    """What torch's DataLoader would make, with the loader's `output` and `device` applied."""
    if loader.num_workers == 0:
        return _ConvertingMainProcessIterator(loader)
    loader.check_worker_number_rationality()
    return ConvertingWorkerIterator(loader)
