"""torchvision's transforms as the JSON pipeline that the C++ core runs.

Only exact types count: a subclass may override anything. What is not known here is no error: the
caller takes torch's path.
"""

import json
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

from headrace._core import Error, Transform
from headrace.output import Output


class NotNative(Exception):
    """Why something takes torch's path.

    Attributes:
        culprit: the object that decided it.
        reason: in words.
    """

    def __init__(self, culprit: object, reason: str) -> None:
        super().__init__(reason)
        self.culprit = culprit
        self.reason = reason


@dataclass(frozen=True)
class Pictures:
    """What all pictures of a dataset have in common.

    Attributes:
        mode: of the PIL images that the transform gets: "RGB" or "L".
        size: their (width, height), where they have one.
    """

    mode: str = "RGB"
    size: tuple[int, int] | None = None


Op = dict[str, Any]
_AS_IT_IS = Output()
ANY_PICTURES = Pictures()


def to_json(transform: Any, output: Output = _AS_IT_IS, pictures: Pictures = ANY_PICTURES) -> str:
    """The pipeline of `transform` for :class:`headrace._core.Transform`.

    Args:
        transform: a torchvision transform, v1 or v2, or a Compose of them.
        output: what is done to the images afterwards.
        pictures: what it is applied to. Where they have a size, no step need give it.

    Returns:
        JSON, as loader/include/headrace/transform.h describes it.

    Raises:
        NotNative: the first transform that the core does not know, or options that it does not.
    """
    recipe: dict[str, Any] = {
        "headrace": 1,
        "resize_passes": resize_passes(),
        "memory_format": _MEMORY_FORMATS[output.memory_format],
        "ops": [_operation(step) for step in flatten(transform)],
    }
    # What the core is told by steps that change nothing.
    if pictures.size is not None:
        recipe["ops"].insert(0, {"op": "center_crop", "size": list(pictures.size[::-1])})
    if pictures.mode == "L":
        recipe["ops"].insert(0, {"op": "grayscale", "num_output_channels": 1})
    text = json.dumps(recipe)
    made = getattr(torch, _dtype_made(text, transform))
    wanted = output.dtype_of(made)
    if wanted != made:
        recipe["ops"].append(_to_dtype(v2.ToDtype(wanted)))
        text = json.dumps(recipe)
        _dtype_made(text, transform)
    return text


_CONVERSIONS = ("to_tensor", "pil_to_tensor", "to_image")
_MEMORY_FORMATS = {torch.contiguous_format: "contiguous", torch.channels_last: "channels_last"}


def _dtype_made(recipe: str, transform: Any) -> str:
    try:
        return _dtype_of(recipe)
    except Error as error:
        raise NotNative(transform, str(error)) from error


@lru_cache(maxsize=64)  # asked before every batch without workers
def _dtype_of(recipe: str) -> str:
    return Transform(recipe).output[1]


@cache
def resize_passes() -> str:
    """The order of the two passes of the installed Pillow's resize: "resize_passes" of the JSON.

    Pillow rounds to 8 bits between them, so the order shows. It has changed between releases, and
    is told here by resizes in which they differ.
    """
    bicubic = Image.Resampling.BICUBIC

    def height_first(size: tuple[int, int], new_size: tuple[int, int]) -> bool:
        ramp = [(37 * i * i + 11 * i) % 256 for i in range(size[0] * size[1])]
        image = Image.frombytes("L", size, bytes(ramp))
        two_steps = image.resize((size[0], new_size[1]), bicubic).resize(new_size, bicubic)
        return image.resize(new_size, bicubic).tobytes() == two_steps.tobytes()

    if height_first((20, 60), (10, 31)):
        return "by_size"
    return "width_first_unless_tall" if height_first((3, 301), (7, 250)) else "width_first"


def steps_without_geometry(transform: Any) -> list[Any]:
    """The steps of a native pipeline that treat values only."""
    return [step for step in flatten(transform) if _OPERATIONS[type(step)] not in _GEOMETRY]


def crops_tensors(transform: Any) -> bool:
    """Whether a native pipeline crops what is a tensor already."""
    names = [_operation(step)["op"] for step in flatten(transform)]
    first = next((place for place, name in enumerate(names) if name in _CONVERSIONS), len(names))
    return any("crop" in name or name == "pad" for name in names[first:])


def is_random(recipe: str) -> bool:
    """Whether the pipeline draws random numbers."""
    return any(op["op"].startswith("random_") for op in json.loads(recipe)["ops"])


def flatten(transform: Any) -> Iterator[Any]:
    """The steps of nested Composes."""
    if type(transform) in (v1.Compose, v2.Compose):
        check_untouched(transform)
        for step in transform.transforms:
            yield from flatten(step)
    else:
        yield transform


def check_untouched(transform: Any) -> None:
    """Hooks and replaced methods of one object change what it does without changing its type."""
    state = vars(transform)
    if state.get("_forward_hooks") or state.get("_forward_pre_hooks"):
        raise NotNative(transform, "it has forward hooks")
    for name in state.keys() & _methods_of(type(transform)):  # type: ignore[arg-type]
        raise NotNative(transform, f"its method {name} was replaced")


@cache
def _methods_of(kind: Any) -> frozenset[str]:
    return frozenset(name for name in dir(kind) if callable(getattr(kind, name, None)))


def _operation(transform: Any) -> Op:
    convert = _OPERATIONS.get(type(transform))
    if convert is None:
        raise NotNative(transform, "headrace has no native form of this transform")
    check_untouched(transform)
    try:
        return convert(transform)
    except NotNative:
        raise
    except Exception as error:  # whatever odd options raise
        raise NotNative(transform, f"its options are not understood: {error}") from error


def _size(size: Any) -> Any:
    """An edge length stays one; a sequence of one is one (torchvision's rule for Resize)."""
    if isinstance(size, int):
        return size
    edges = [operator.index(edge) for edge in size]
    return edges[0] if len(edges) == 1 else edges


_INTERPOLATIONS = {
    "nearest": "nearest",
    "nearest-exact": "nearest",  # the same filter on PIL images
    "bilinear": "bilinear",
    "bicubic": "bicubic",
    0: "nearest",
    2: "bilinear",
    3: "bicubic",
}


def _interpolation(transform: Any) -> str:
    mode = transform.interpolation
    name = _INTERPOLATIONS.get(getattr(mode, "value", mode))
    if name is None:
        raise NotNative(transform, f"interpolation {mode!r} has no native form")
    return name


def _resize(t: Any) -> Op:
    op = {"op": "resize", "size": _size(t.size), "interpolation": _interpolation(t)}
    if t.max_size is not None:
        op["max_size"] = operator.index(t.max_size)
    return op


def _both_edges(size: Any) -> list[int]:
    edges = _size(size)
    return [edges, edges] if isinstance(edges, int) else edges


def _center_crop(t: Any) -> Op:
    return {"op": "center_crop", "size": _both_edges(t.size)}


@lru_cache(maxsize=64)
def _logarithms(low: float, high: float) -> list[float]:
    values: list[float] = torch.log(torch.tensor([low, high])).tolist()
    return values


def _random_resized_crop(t: Any) -> Op:
    # v1 takes the logarithm at each call, v2 at construction: either way it is torch's.
    log_ratio = getattr(t, "_log_ratio", None)
    logarithms = _logarithms(*t.ratio) if log_ratio is None else log_ratio.tolist()
    return {
        "op": "random_resized_crop",
        "size": _both_edges(t.size),
        "scale": [float(bound) for bound in t.scale],
        "ratio": [float(bound) for bound in t.ratio],
        "log_ratio": logarithms,
        "interpolation": _interpolation(t),
    }


def _padding(padding: Any) -> list[int]:
    """[left, top, right, bottom] of what torchvision takes."""
    if isinstance(padding, int):
        return [padding] * 4
    sides = [operator.index(side) for side in padding]
    return sides * (4 // len(sides))


def _border(t: Any) -> Op:
    if t.padding_mode != "constant":
        return {"padding_mode": t.padding_mode}
    fill = t.fill
    if (of_types := getattr(t, "_fill", None)) is not None:  # v2's
        if of_types.keys() != {"others"}:
            raise NotNative(t, "a fill for each type has no native form")
        fill = of_types["others"]
    values = [0] if fill is None else fill if isinstance(fill, (list, tuple)) else [fill]
    whole = [int(value) for value in values]
    if whole != list(values):
        raise NotNative(t, f"fill {fill!r} has no native form")
    return {"padding_mode": "constant", "fill": whole * 3 if len(whole) == 1 else whole}


def _pad(t: Any) -> Op:
    return {"op": "pad", "padding": _padding(t.padding), **_border(t)}


def _random_crop(t: Any) -> Op:
    padding = [0] * 4
    if t.padding is not None:
        padding = _padding(t.padding)
        if type(t) is v2.RandomCrop:  # there it is [left, right, top, bottom]
            padding[1:3] = padding[2:0:-1]
    return {
        "op": "random_crop",
        "api": "v2" if type(t) is v2.RandomCrop else "v1",
        "size": _both_edges(t.size),
        "padding": padding,
        "pad_if_needed": bool(t.pad_if_needed),
        **_border(t),
    }


def _random_horizontal_flip(t: Any) -> Op:
    return {"op": "random_horizontal_flip", "p": float(t.p)}


def _random_vertical_flip(t: Any) -> Op:
    return {"op": "random_vertical_flip", "p": float(t.p)}


def _grayscale(t: Any) -> Op:
    return {"op": "grayscale", "num_output_channels": operator.index(t.num_output_channels)}


def _random_grayscale(t: Any) -> Op:
    return {"op": "random_grayscale", "p": float(t.p)}


_DTYPE_NAMES = {
    torch.uint8: "uint8",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
}


def _dtype_name(t: Any) -> str:
    if type(t.dtype) is not torch.dtype or t.dtype not in _DTYPE_NAMES:
        raise NotNative(t, f"dtype {t.dtype} has no native form")
    return _DTYPE_NAMES[t.dtype]


def _to_dtype(t: Any) -> Op:
    return {"op": "to_dtype", "dtype": _dtype_name(t), "scale": bool(t.scale)}


def _convert_image_dtype(t: Any) -> Op:
    if type(t) is v2.ConvertImageDtype:
        return {"op": "to_dtype", "dtype": _dtype_name(t), "scale": True}
    return {"op": "convert_image_dtype", "dtype": _dtype_name(t)}


def _normalize(t: Any) -> Op:
    return {
        "op": "normalize",
        "mean": [float(value) for value in t.mean],
        "std": [float(value) for value in t.std],
    }


_GEOMETRY = (
    _resize,
    _center_crop,
    _random_resized_crop,
    _pad,
    _random_crop,
    _random_horizontal_flip,
    _random_vertical_flip,
)
_OPERATIONS: dict[type, Callable[[Any], Op]] = {
    v1.Resize: _resize,
    v2.Resize: _resize,
    v1.CenterCrop: _center_crop,
    v2.CenterCrop: _center_crop,
    v1.RandomResizedCrop: _random_resized_crop,
    v2.RandomResizedCrop: _random_resized_crop,
    v1.Pad: _pad,
    v2.Pad: _pad,
    v1.RandomCrop: _random_crop,
    v2.RandomCrop: _random_crop,
    v1.RandomHorizontalFlip: _random_horizontal_flip,
    v2.RandomHorizontalFlip: _random_horizontal_flip,
    v1.RandomVerticalFlip: _random_vertical_flip,
    v2.RandomVerticalFlip: _random_vertical_flip,
    v1.Grayscale: _grayscale,
    v2.Grayscale: _grayscale,
    v1.RandomGrayscale: _random_grayscale,
    v2.RandomGrayscale: _random_grayscale,
    v2.RGB: lambda t: {"op": "rgb"},
    v1.ToTensor: lambda t: {"op": "to_tensor"},
    v2.ToTensor: lambda t: {"op": "to_tensor"},
    v1.PILToTensor: lambda t: {"op": "pil_to_tensor"},
    v2.PILToTensor: lambda t: {"op": "pil_to_tensor"},
    v2.ToImage: lambda t: {"op": "to_image"},
    v2.ToDtype: _to_dtype,
    v1.ConvertImageDtype: _convert_image_dtype,
    v2.ConvertImageDtype: _convert_image_dtype,
    v1.Normalize: _normalize,
    v2.Normalize: _normalize,
}

KNOWN_TRANSFORMS: list[type] = [v1.Compose, v2.Compose, *_OPERATIONS]
