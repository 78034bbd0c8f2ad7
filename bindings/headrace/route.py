"""Which path a loader takes, and why."""

import inspect
import operator
import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torchvision
from PIL import Image, ImageOps
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.data import ConcatDataset, Subset
from torchvision.datasets import folder, mnist

from headrace import collate, image_dataset, selfcheck
from headrace.formats import check_formats
from headrace.output import Output
from headrace.recipe import KNOWN_TRANSFORMS, NotNative, Pictures, to_json
from headrace.samples import LEAVES, leaves
from headrace.settings import ProcessSettings

if TYPE_CHECKING:
    from headrace.loader import DataLoader

_AN_IMAGE = torchvision.tv_tensors.Image(torch.zeros(1, 1, 1))

# What the native path stands for, as it was: who replaces a part of it wants the replacement run.
# (owner, names, what fetches all of them, what they were.)
_PARTS = [
    *((kind, ["__getitem__", "__getitems__"]) for kind in (Subset, ConcatDataset, *LEAVES)),
    (folder, ["pil_loader"]),
    (mnist, ["_Image_fromarray"]),
    (image_dataset, ["open_as_rgb"]),
    (Image, ["open", "fromarray"]),
    (Image.Image, ["convert", "crop", "paste", "resize", "transpose"]),
    (ImageOps, ["expand"]),
    (np, ["pad"]),
    *((kind, ["__call__", "forward", "get_params", "transform"]) for kind in KNOWN_TRANSFORMS),
    *((kind, ["__call__", "forward", "make_params", "transform"]) for kind in collate.MIXINGS),
]
STANDS_FOR = [
    (owner, names, operator.attrgetter(*names), operator.attrgetter(*names)(owner))
    for owner, parts in _PARTS
    # One that every object has makes it a tuple always.
    for names in [["__class__", *(name for name in parts if hasattr(owner, name))]]
]
WITHOUT_GETITEMS = [kind for kind in LEAVES if not hasattr(kind, "__getitems__")]


@dataclass(frozen=True)
class Explanation:
    """The path that a loader takes.

    Attributes:
        path: "native" or "torch".
        reason: why, in words.
        culprit: the first object that prevented the native path; None when it is native.
    """

    path: str
    reason: str
    culprit: object = None

    @property
    def native(self) -> bool:
        """Whether batches come from headrace's own threads."""
        return self.path == "native"

    def __str__(self) -> str:
        if self.native:
            return f"native path: {self.reason}"
        return f"torch path, because of {_describe(self.culprit)}: {self.reason}"


_short = reprlib.Repr()  # neither a huge dataset nor a broken __repr__ is to be suffered for
_short.maxother = _short.maxstring = 1000


def _describe(culprit: object) -> str:
    if isinstance(culprit, str):
        return culprit
    text = " ".join(_short.repr(culprit).split())
    if len(text) > 120:
        text = f"{type(culprit).__module__}.{type(culprit).__qualname__}"
    return text


def decide(loader: "DataLoader[Any]") -> tuple[Explanation, str]:
    """The path of `loader` as it stands now, and its transform's recipe ("" on torch's path)."""
    try:
        recipe = _native_recipe(loader)
    except NotNative as refusal:
        return Explanation("torch", refusal.reason, refusal.culprit), ""
    reason = "dataset, transforms and collate are known to headrace"
    if loader.num_workers > 0 and loader.worker_init_fn is not None:
        reason += ", as long as worker_init_fn only seeds"
    return Explanation("native", reason), recipe


def _native_recipe(loader: "DataLoader[Any]") -> str:
    _check_arguments(loader)
    parts = list(leaves(loader.dataset))
    for part in parts:
        _check_dataset(part)
    mixing = collate.recognise(loader.collate_fn, loader._auto_collation)
    _check_rules(loader, mixing)
    check_process()
    recipe = ""
    known: set[Any] = set()  # many parts often share one transform
    for part in parts:
        pictures = LEAVES[type(part)].pictures(part)
        key = id(part.transform), pictures
        if key in known:
            continue
        known.add(key)
        output = collate.output_before(
            mixing, loader._auto_collation, part.transform, pictures, loader.output
        )
        recipe_of_part = _recipe_of(part, output, pictures)
        if recipe not in ("", recipe_of_part):
            raise NotNative(part, "it has another transform than the first of the ConcatDataset")
        recipe = recipe_of_part
    if mixing is not None:
        selfcheck.check_mixing(mixing)
    if not loader._auto_collation:
        forms = [
            collate.sample_form(part.transform, LEAVES[type(part)].pictures(part)) for part in parts
        ]
        if forms.count(forms[0]) != len(forms):
            raise NotNative(loader.dataset, "its parts return images of different forms")
    check_formats(loader.dataset, loader.num_workers)
    return recipe


def _check_rules(loader: "DataLoader[Any]", mixing: Any) -> None:
    rules = loader.sample_rules
    if rules.plain:
        return
    if mixing is not None and (rules.counter or rules.on_error == "skip"):
        raise NotNative(loader.collate_fn, 'it draws, with rng="counter" or on_error="skip"')
    if loader.num_workers > 0 and loader.worker_init_fn is not None:
        raise NotNative(loader.worker_init_fn, "worker_init_fn with rng, on_error or resumable")


def _check_arguments(loader: "DataLoader[Any]") -> None:
    if not loader._auto_collation and not loader.output.plain:
        raise NotNative("batch_size=None", "dtype and memory_format are for batches")
    for name, value in loader._newer_arguments.items():
        if value is not _default_of(name):
            raise NotNative(f"{name}={value!r}", "headrace does not know this argument of torch's")
    refused, reason = loader._refused_init
    if refused is not None and refused is loader.worker_init_fn and loader.num_workers > 0:
        raise NotNative(refused, f"a worker_init_fn that only seeds is native; {reason}")
    if loader.num_workers > 0 and not _forks(loader) and not ProcessSettings.current().as_new:
        raise NotNative("settings of Pillow", "processes that are not forked have others")
    if loader.num_workers > 0 and not loader.prefetch_factor:
        raise NotNative("prefetch_factor=0", "torch refuses it at iteration")
    if loader.num_workers == 0 and loader.timeout:
        raise NotNative("timeout", "torch refuses it without workers")


def _default_of(argument: str) -> Any:
    parameters = inspect.signature(torch.utils.data.DataLoader.__init__).parameters
    return parameters[argument].default if argument in parameters else inspect.Parameter.empty


def _forks(loader: "DataLoader[Any]") -> bool:
    context = loader.multiprocessing_context or torch.multiprocessing
    return bool(context.get_start_method() == "fork")


def _check_dataset(dataset: Any) -> None:
    kind = LEAVES.get(type(dataset))
    if kind is None:
        names = ", ".join(dict.fromkeys(known.__name__ for known in LEAVES))
        raise NotNative(
            dataset, f"only {names} themselves, and Subset and ConcatDataset of them, are native"
        )
    kind.check(dataset)
    if dataset.transform is None:
        raise NotNative(dataset, "without a transform the samples are PIL images")


def _recipe_of(dataset: Any, output: Output, pictures: Pictures) -> str:
    recipe = to_json(dataset.transform, output, pictures)
    selfcheck.check(recipe, dataset.transform, output, pictures)
    return recipe


def _tv_tensors_stay() -> bool:
    """Whether operations on tv_tensors give such (tv_tensors.set_return_type)."""
    # A part of torchvision that is not public, but much faster than an operation.
    told = getattr(torchvision.tv_tensors._tv_tensor, "_must_return_subclass", None)
    return bool(told()) if told is not None else type(_AN_IMAGE + 0) is not torch.Tensor


def check_process() -> None:
    """Raises NotNative where the process is set up otherwise than headrace takes for granted."""
    for owner, names, fetch, originals in STANDS_FOR:
        if (found := fetch(owner)) != originals:
            differ = [pair[0] != pair[1] for pair in zip(found, originals, strict=True)]
            name = names[differ.index(True)]
            raise NotNative(getattr(owner, name), f"it replaces {name} of {owner}")
    for kind in WITHOUT_GETITEMS:
        if hasattr(kind, "__getitems__"):
            raise NotNative(kind.__getitems__, f"it is an addition to {kind}")
    check_settings()


def check_settings() -> None:
    """The part of :func:`check_process` that is about no particular objects."""
    if _has_any_global_hook():
        raise NotNative("a global hook of torch.nn", "it may change what transforms do")
    if _tv_tensors_stay():
        raise NotNative("tv_tensors.set_return_type", "batches would be tv_tensors")
    if torchvision.get_image_backend() != "PIL":
        raise NotNative(
            f"image backend {torchvision.get_image_backend()}", "it decodes otherwise than Pillow"
        )
    if torch.get_default_dtype() != torch.float32:
        raise NotNative(f"default dtype {torch.get_default_dtype()}", "ToTensor would follow it")
    # Parts of torch that are not public, but far faster than torch.get_default_device().
    if torch._C._len_torch_function_stack() or hasattr(
        torch._GLOBAL_DEVICE_CONTEXT, "device_context"
    ):
        device = torch.get_default_device()
        if device.type != "cpu":
            raise NotNative(f"default device {device}", "random draws would be made there")
