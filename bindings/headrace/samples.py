"""What the engine needs to know of a dataset: paths and labels, as its own lookups give them."""

import copy
from typing import Any

from torch.utils.data import Subset

Sample = tuple[str, int, int, bool]


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
            result.append((path, label, int(place), False))
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


def differ(before: Any, now: list[Sample] | Exception) -> bool:
    """Whether samples are others; labels must be the very same objects, since 1 == True."""
    return isinstance(now, Exception) or any(
        path != new_path or label is not new_label
        for (path, label, *_), (new_path, new_label, *_) in zip(before, now, strict=True)
    )
