"""Which collate functions are native: default_collate, alone or with MixUp and CutMix after it.

MixUp and CutMix (torchvision.transforms.v2, also within RandomChoice) are run by torchvision itself
on the finished batch. A function that applies them is recognised by its bytecode, which must be
exactly what one of a few known texts compiles to; any other is left to torch.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
import torchvision
from PIL import Image
from torch.utils.data import default_collate, default_convert
from torch.utils.data._utils import collate as torch_collate
from torchvision.transforms import v2

from headrace import selfcheck
from headrace.output import Output
from headrace.recipe import NotNative, Pictures, check_untouched, crops_tensors, flatten


@dataclass(frozen=True)
class Mixing:
    """A transform of whole batches, applied to the result of default_collate.

    Attributes:
        transform: v2.MixUp, v2.CutMix or v2.RandomChoice of such.
        spread: called as transform(images, labels); otherwise as transform([images, labels]).
    """

    transform: Any
    spread: bool

    def __call__(self, batch: list[torch.Tensor]) -> Any:
        """What the collate function returns for a batch that default_collate made."""
        return self.transform(*batch) if self.spread else self.transform(batch)

    def collate(self, samples: list[Any]) -> Any:
        """What the collate function does, with the transform as it is here."""
        return self(default_collate(samples))

    def draw(self, images: tuple[int, ...], dtype: torch.dtype) -> None:
        """Makes the random draws of a call, and nothing else: on tensors without data.

        The draws depend on shapes only. What is raised here is raised after them, or else before
        them in a real call too.
        """
        pictures = torch.empty(images, dtype=dtype, device="meta")
        labels = torch.empty(images[0], dtype=torch.int64, device="meta")
        self([pictures, labels])

    @property
    def key(self) -> Any:
        """Equal for mixings that give the same results, as long as the transforms live."""
        return self.spread, _key(self.transform)


def recognise(collate_fn: Any, auto_collation: bool = True) -> Mixing | None:
    """What a native collate function does after default_collate; None: nothing.

    Raises:
        NotNative: headrace does not know the function.
    """
    if collate_fn is (default_collate if auto_collation else default_convert):
        _check_registry()
        return None
    if not auto_collation:
        raise NotNative(collate_fn, "without batches only default_convert is native")
    if type(collate_fn) is not FunctionType:
        raise NotNative(
            collate_fn, "only default_collate, or MixUp and CutMix after it, are native"
        )
    form = _form_of(collate_fn.__code__)
    if form is None or collate_fn.__defaults__ or collate_fn.__kwdefaults__:
        raise NotNative(
            collate_fn, "only default_collate, or a function of MixUp or CutMix after it, is native"
        )
    collate, transform = (_look_up(collate_fn, names) for names in (form.collate, form.transform))
    if collate is not default_collate:
        raise NotNative(collate_fn, "it collates by something else than default_collate")
    _check_transform(transform)
    _check_registry()
    return Mixing(transform, form.spread)


def output_before(
    mixing: Mixing | None, auto_collation: bool, transform: Any, pictures: Pictures, output: Output
) -> Output:
    """What the engine itself does to the images: `output`, unless that comes after collation.

    Raises:
        NotNative: see :func:`sample_form`.
    """
    if not auto_collation:
        return sample_form(transform, pictures).output
    return output if mixing is None else Output()


# --- samples that are not collated ----------------------------------------------------------------


@dataclass(frozen=True)
class SampleForm:
    """How a transform returns one image: default_convert leaves it so.

    Attributes:
        type: torch.Tensor or tv_tensors.Image.
        output: its memory format.
    """

    type: type
    output: Output


_forms: dict[Any, SampleForm] = {}


def sample_form(transform: Any, pictures: Pictures) -> SampleForm:
    """Found by a trial, once for each kind of pictures and sequence of types and sizes of steps.

    An image of one pixel has other strides than larger ones have.

    Raises:
        NotNative: it is none of those that are known.
    """
    steps = tuple((type(step), repr(getattr(step, "size", None))) for step in flatten(transform))
    key = pictures, steps
    if key not in _forms:
        if crops_tensors(transform):
            raise NotNative(transform, "crops of tensors may be views, of many forms")
        with selfcheck.undisturbed():
            try:
                image = transform(Image.new(pictures.mode, pictures.size or (600, 500)))
            except Exception as error:  # torch raises it for each sample
                raise NotNative(transform, f"it fails on an image: {error!r}") from error
        if not isinstance(image, torch.Tensor) or image.dim() != 3:
            raise NotNative(transform, "it returns no image tensor")
        formats = (torch.contiguous_format, torch.channels_last)
        shape = (1, *image.shape)
        found = [
            form
            for form in formats
            if torch.empty(shape, memory_format=form)[0].stride() == image.stride()
        ]
        if type(image) not in (torch.Tensor, torchvision.tv_tensors.Image) or not found:
            raise NotNative(transform, "it returns images of an unknown form")
        _forms[key] = SampleForm(type(image), Output(memory_format=found[0]))
    return _forms[key]


# --- torch's registry -----------------------------------------------------------------------------


def _check_registry() -> None:
    """Users may extend or replace the functions that default_collate dispatches to, by type."""
    registry = torch_collate.default_collate_fn_map
    expected = {
        tuple: None,
        torch.Tensor: torch_collate.collate_tensor_fn,
        torchvision.tv_tensors.Image: torch_collate.collate_tensor_fn,
        int: torch_collate.collate_int_fn,
    }
    for element_type, function in expected.items():
        found = registry.get(element_type) or next(
            (value for key, value in registry.items() if issubclass(element_type, key)), None
        )
        if found is not function:
            raise NotNative(found, f"default_collate has another function for {element_type}")


# --- transforms of batches ------------------------------------------------------------------------

MIXINGS: list[type] = [v2.MixUp, v2.CutMix, v2.RandomChoice]


def _check_transform(transform: Any) -> None:
    if type(transform) not in MIXINGS:
        raise NotNative(transform, "of collate transforms only MixUp and CutMix are native")
    check_untouched(transform)
    if type(transform) is v2.RandomChoice:
        for part in transform.transforms:
            _check_transform(part)
    elif transform._labels_getter is not v2.MixUp()._labels_getter:
        raise NotNative(transform, "its labels_getter is Python code")


def _key(transform: Any) -> Any:
    if type(transform) is v2.RandomChoice:
        return id(transform), tuple(transform.p), tuple(map(_key, transform.transforms))
    return id(transform), transform.num_classes, id(transform._dist)


# --- functions ------------------------------------------------------------------------------------

# What a collate function with the argument {a} and the local variables {x} and {y} may read. In
# each text the first of two expressions is evaluated before the second.
_TEXTS = [
    ("return {first}(*{second}({a}))", True, False),
    ("return {first}({second}({a}))", False, False),
    ("{x} = {first}({a})\n  return {second}(*{x})", True, True),
    ("{x} = {first}({a})\n  return {second}({x})", False, True),
    ("{x}, {y} = {first}({a})\n  return {second}({x}, {y})", True, True),
]

# Generators, coroutines and variable arguments, which the texts have none of.
_KIND_FLAGS = 0x4 | 0x8 | 0x20 | 0x80 | 0x100 | 0x200


@dataclass(frozen=True)
class _Form:
    collate: tuple[str, ...]  # such as ("torch", "utils", "data", "default_collate")
    transform: tuple[str, ...]
    spread: bool


@lru_cache(maxsize=64)
def _form_of(code: CodeType) -> _Form | None:
    """The text that compiles to `code`, if it is one of those above."""
    if code.co_argcount != 1 or len(code.co_names) > 8 or len(code.co_freevars) > 2:
        return None
    a, x, y = (*code.co_varnames, *code.co_varnames[-1:] * 2)[:3]
    for first, second in _expressions(code):
        for text, spread, collate_first in _TEXTS:
            names = {"first": ".".join(first), "second": ".".join(second), "a": a, "x": x, "y": y}
            if _same_code(code, _compiled(text.format(**names), a, code.co_freevars)):
                collate, transform = (first, second) if collate_first else (second, first)
                return _Form(collate, transform, spread)
    return None


def _expressions(code: CodeType) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Ways to make two dotted expressions of the names that the code uses, in their order."""
    roots = [(), *((name,) for name in code.co_freevars)]
    for first, second in itertools.product(roots, roots):
        for cut in range(len(code.co_names) + 1):
            pair = (*first, *code.co_names[:cut]), (*second, *code.co_names[cut:])
            if all(pair):
                yield pair


def _compiled(text: str, argument: str, free: tuple[str, ...]) -> CodeType | None:
    lines = f"def f({argument}):\n  {text}\n"
    if free:
        inner = "".join(f" {line}\n" for line in lines.splitlines())
        lines = f"def outer({', '.join(free)}):\n{inner}"
    try:
        code = compile(lines, "<collate>", "exec")
    except SyntaxError:  # a name that stands for none in a text, such as a comprehension's .0
        return None
    for _ in range(2 if free else 1):  # of the module, of outer
        code = next(const for const in code.co_consts if isinstance(const, CodeType))
    return code


def _same_code(one: CodeType, other: CodeType | None) -> bool:
    # Constants don't count: none of the texts loads any, and where the bytecode is the same, so
    # does the other. A docstring would be one.
    return (
        other is not None
        and all(
            getattr(one, name) == getattr(other, name)
            for name in ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars")
        )
        and (one.co_flags ^ other.co_flags) & _KIND_FLAGS == 0
    )


def _look_up(function: FunctionType, names: tuple[str, ...]) -> Any:
    """What the dotted expression stands for in the function now."""
    root, *attributes = names
    try:
        if root in function.__code__.co_freevars:
            cells = function.__closure__ or ()
            found = cells[function.__code__.co_freevars.index(root)].cell_contents
        else:
            found = function.__globals__[root]
        for name in attributes:
            # No getattr() of other objects: a property would be run.
            if isinstance(found, ModuleType):
                found = getattr(found, name)
            else:
                found = {**vars(found), **vars(found).get("_modules", {})}[name]
    except (KeyError, ValueError, AttributeError, TypeError) as error:
        raise NotNative(function, f"its {'.'.join(names)} is not found: {error!r}") from error
    return found
