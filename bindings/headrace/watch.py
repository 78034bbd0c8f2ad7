"""Notices, far faster than a new decision takes, that a loader's path may be another one."""

import itertools
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset, default_collate, default_convert
from torch.utils.data._utils import collate as torch_collate
from torchvision.transforms import InterpolationMode

from headrace._core import all_same
from headrace.collate import MIXINGS
from headrace.recipe import KNOWN_TRANSFORMS, NotNative
from headrace.route import STANDS_FOR, WITHOUT_GETITEMS, check_settings
from headrace.samples import LEAVES, leaves

if TYPE_CHECKING:
    from headrace.loader import DataLoader

# What of a loader without workers route.decide() looks at.
_LOADER = ["__class__", "dataset", "collate_fn", "batch_sampler", "num_workers", "timeout"]
_LOADER += ["on_error", "rng", "resumable", "dtype", "memory_format", "_newer_arguments"]

_COLLATING = ["default_collate_fn_map", "collate_tensor_fn", "collate_int_fn"]

# Objects of these types stay what they are.
_UNCHANGING = {type(None), bool, int, float, str, bytes, torch.dtype}
_UNCHANGING |= {InterpolationMode, Image.Resampling}

# Of what the native path stands for, these count only where they are in use.
_OF_CHOICE = {Subset, ConcatDataset, *LEAVES, *KNOWN_TRANSFORMS, *MIXINGS}


class Watch:
    """What route.decide() has looked at, for a loader without workers.

    Objects are remembered with all that they refer to, down to those that cannot change, so that it
    is enough to compare references. It refers to all of them, so none can make room for another.
    """

    def __init__(self, loader: "DataLoader[Any]") -> None:
        self._attributes: list[tuple[Any, str, Any]] = []
        self._lists: list[tuple[list[Any], tuple[Any, ...]]] = []
        self._dicts: list[tuple[dict[Any, Any], tuple[Any, ...]]] = []
        self._tensors: list[tuple[torch.Tensor, Any]] = []
        self._certain = True  # it knows how to watch everything
        self._known: set[int] = set()  # ids

        for name in _LOADER:
            self._add_attribute(loader, name)
        self._add(loader._newer_arguments)
        if loader.collate_fn not in (default_collate, default_convert):
            self._certain = False
        for name in _COLLATING:
            self._add_attribute(torch_collate, name)
        self._add_items(torch_collate.default_collate_fn_map)

        self._add_dataset(loader.dataset)
        self._leaves: list[tuple[Any, Any]] = []
        for leaf in leaves(loader.dataset):
            self._add_leaf(leaf)
        used = {type(owner) for owner, _, _ in self._attributes}
        self._without_getitems = [kind for kind in WITHOUT_GETITEMS if kind in used]
        for owner, names, _, originals in STANDS_FOR:
            if owner in used or owner not in _OF_CHOICE:
                self._attributes += zip(itertools.repeat(owner), names, originals, strict=False)

    def unchanged(self) -> bool:
        """Whether route.decide() would certainly say the same as when this was made."""
        if not (self._certain and all_same(self._attributes, self._lists, self._dicts)):
            return False
        if any(hasattr(kind, "__getitems__") for kind in self._without_getitems):
            return False
        if any(tensor.tolist() != values for tensor, values in self._tensors):
            return False
        try:
            check_settings()
            for leaf, pictures in self._leaves:
                kind = LEAVES[type(leaf)]
                kind.check(leaf)
                if kind.pictures(leaf) != pictures:
                    return False
        except NotNative:
            return False
        return True

    def _add_dataset(self, dataset: Any) -> None:
        self._add_attribute(dataset, "__class__")
        if type(dataset) is Subset:
            self._add_attribute(dataset, "dataset")
            self._add_dataset(dataset.dataset)
        elif type(dataset) is ConcatDataset:
            self._add_attribute(dataset, "datasets")
            self._add(dataset.datasets, self._add_dataset)
        elif type(dataset) in LEAVES:
            self._add_attribute(dataset, "transform")
            self._add(dataset.transform)
        else:
            self._certain = False

    def _add_leaf(self, leaf: Any) -> None:
        kind = LEAVES.get(type(leaf))
        try:
            if kind is None:
                raise NotNative(leaf, "it is of no known type")
            kind.check(leaf)
            self._leaves.append((leaf, kind.pictures(leaf)))
        except NotNative:
            self._certain = False

    def _add_attribute(self, owner: Any, name: str) -> None:
        self._attributes.append((owner, name, getattr(owner, name)))

    def _add_items(self, items: dict[Any, Any]) -> None:
        self._dicts.append((items, tuple(itertools.chain.from_iterable(items.items()))))

    def _add(self, thing: Any, add: Any = None) -> None:
        """Watches an object, and by `add` what is in it."""
        add = add or self._add
        kind = type(thing)
        if kind in _UNCHANGING or id(thing) in self._known:
            return
        self._known.add(id(thing))
        if kind is tuple:
            for part in thing:
                add(part)
        elif kind is list:
            self._lists.append((thing, tuple(thing)))
            for part in thing:
                add(part)
        elif kind in (dict, OrderedDict):
            self._add_items(thing)
            for part in thing.values():
                add(part)
        elif kind is torch.Tensor:
            self._tensors.append((thing, thing.tolist()))
        elif kind in KNOWN_TRANSFORMS:
            self._add_attribute(thing, "__class__")
            self._add_attribute(thing, "__dict__")
            self._add(vars(thing))
        elif kind is not set or thing:  # a module has a set that is empty; recipes read none
            self._certain = False
