"""Accelerate with headrace: loaders that stay headrace's when they are prepared.

Accelerate's ``prepare()`` builds torch's own DataLoader from the attributes of the one that it is
given, and puts it into a wrapper of its own. Here the wrapper gets a headrace loader instead::

    accelerator = headrace.accelerate.adapt(accelerate.Accelerator())
    model, loader = accelerator.prepare(model, headrace.DataLoader(...))
    loader.explain()

The Trainer of transformers makes its loaders itself: there, ``adapt(trainer.accelerator)`` is all.
"""

import inspect
import re
import warnings
from typing import Any, TypeVar

import torch.utils.data
from torch.utils.data import IterableDataset

from headrace.loader import DataLoader
from headrace.rebuilt import WARNING

Accelerator = TypeVar("Accelerator")


def adapt(accelerator: Accelerator) -> Accelerator:
    """Makes every DataLoader that `accelerator` prepares from now on a headrace.DataLoader.

    One that was torch's becomes headrace's with default settings.

    Args:
        accelerator: an accelerate.Accelerator, changed in place.

    Returns:
        The same accelerator.
    """
    for name in ("prepare_data_loader", "skip_first_batches"):
        setattr(accelerator, name, _keeping(getattr(accelerator, name)))
    return accelerator


def _keeping(method: Any) -> Any:
    def keeping(loader: Any, *args: Any, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", re.escape(WARNING))
            prepared = method(loader, *args, **options)
        base = getattr(prepared, "base_dataloader", prepared)
        if type(base) is not torch.utils.data.DataLoader:
            return prepared
        kept = _as_headrace(base, like=loader)
        if base is prepared:
            return kept
        prepared.base_dataloader = kept
        if hasattr(kept, "state_dict"):  # its constructor looks for one
            prepared.dl_state_dict = kept.state_dict()
        return prepared

    return keeping


def _as_headrace(base: torch.utils.data.DataLoader[Any], like: Any) -> DataLoader[Any]:
    """`base` as a headrace loader, with headrace's own arguments from `like` where it has them."""
    of_torch = inspect.signature(torch.utils.data.DataLoader.__init__).parameters
    arguments = {name: getattr(base, name) for name in of_torch if hasattr(base, name)}
    if isinstance(base.dataset, IterableDataset):
        unneeded = ["sampler", "batch_sampler"]
    elif base.batch_sampler is None:
        unneeded = ["batch_sampler", "drop_last"]
    else:
        unneeded = ["batch_size", "sampler", "drop_last"]
    for name in unneeded:
        arguments.pop(name, None)
    own = inspect.signature(DataLoader.__init__).parameters.keys() - of_torch.keys()
    arguments.update({name: getattr(like, name) for name in own if hasattr(like, name)})
    return DataLoader(**arguments)
