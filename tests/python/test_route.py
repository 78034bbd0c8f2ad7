"""explain() names what keeps a loader from the native path, which then behaves as torch's."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from PIL import Image
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.data import IterableDataset, Subset
from torch.utils.data._utils.collate import default_collate_fn_map
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.datasets import DatasetFolder, ImageFolder
from torchvision.transforms import v2

from headrace import DataLoader
from support import assert_same_behaviour, begin, end, epochs, evaluation, step, train, train_v2

# --- things that are not native -----------------------------------------------------------------


class OwnFolder(ImageFolder):
    """Changes nothing, but might."""


class OwnSubset(Subset[Any]):
    pass


class OwnCrop(v1.RandomResizedCrop):
    def forward(self, img: Image.Image) -> Image.Image:
        return super().forward(img).transpose(Image.Transpose.ROTATE_90)


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(7))


def add_ten(label: int) -> int:
    return label + 10


def darker(path: str) -> Image.Image:
    return Image.open(path).convert("RGB").point(lambda value: value // 2)


def invert(image: torch.Tensor) -> torch.Tensor:
    return 1 - image


def labels_only(samples: list[Any]) -> list[int]:
    return [label for _, label in samples]


def look_up(samples: list[Any]) -> int:
    return {0: "zero"}[samples[0][1] + 100]  # type: ignore[return-value]


def draw(worker: int) -> None:
    torch.rand(3)


def rotated(_: Any, __: Any, image: Image.Image) -> Image.Image:
    return image.rotate(90)


def hooked() -> Any:
    pipeline = train()
    pipeline.transforms[0].register_forward_hook(rotated)
    return pipeline


def with_replaced_method() -> Any:
    pipeline = train()
    pipeline.transforms[0].get_params = lambda image, scale, ratio: (0, 0, 5, 5)
    return pipeline


def with_replaced_forward() -> Any:
    pipeline = train_v2()
    pipeline.transforms[0].transform = lambda image, params: image.rotate(90).resize((24, 24))
    return pipeline


jitter, own_crop = v1.ColorJitter(0.1), OwnCrop(24)
resize_only = v1.Compose([v1.Resize((30, 24)), invert])

# Of a loader: how it is made, and which object is to blame.
Case = tuple[Callable[[type[Any], Path], Any], Callable[[Any], Any]]
CASES: dict[str, Case] = {
    "subclass of ImageFolder": (
        lambda make, root: make(OwnFolder(root, train()), 4),
        lambda loader: loader.dataset,
    ),
    "subclass of Subset": (
        lambda make, root: make(OwnSubset(ImageFolder(root, train()), range(9)), 4),
        lambda loader: loader.dataset,
    ),
    "foreign dataset under a Subset": (
        lambda make, root: make(Subset(list(range(9)), range(7)), 4),  # type: ignore[arg-type]
        lambda loader: loader.dataset.dataset,
    ),
    "IterableDataset": (
        lambda make, root: make(Numbers(), 3),
        lambda loader: loader.dataset,
    ),
    "target_transform": (
        lambda make, root: make(ImageFolder(root, train(), add_ten), 4, shuffle=True),
        lambda loader: add_ten,
    ),
    "custom loader": (
        lambda make, root: make(ImageFolder(root, train(), loader=darker), 4),
        lambda loader: darker,
    ),
    "no transform": (
        lambda make, root: make(ImageFolder(root), 4),
        lambda loader: loader.dataset,
    ),
    "function in the Compose": (
        lambda make, root: make(ImageFolder(root, v1.Compose([train(), invert])), 4),
        lambda loader: invert,
    ),
    "transform that is not known": (
        lambda make, root: make(ImageFolder(root, v1.Compose([jitter, train()])), 4),
        lambda loader: jitter,
    ),
    "subclass of a transform": (
        lambda make, root: make(ImageFolder(root, v1.Compose([own_crop, v1.ToTensor()])), 4),
        lambda loader: own_crop,
    ),
    "sizes that vary": (
        lambda make, root: make(ImageFolder(root, v1.Compose([v1.Resize(9), v1.ToTensor()]))),
        lambda loader: loader.dataset.transform,
    ),
    "resize of a tensor": (
        lambda make, root: make(ImageFolder(root, v2.Compose([v2.ToImage(), v2.Resize((9, 9))]))),
        lambda loader: loader.dataset.transform,
    ),
    "forward hook": (
        lambda make, root: make(ImageFolder(root, hooked()), 4),
        lambda loader: loader.dataset.transform.transforms[0],
    ),
    "replaced method": (
        lambda make, root: make(ImageFolder(root, with_replaced_method()), 4),
        lambda loader: loader.dataset.transform.transforms[0],
    ),
    "replaced method of v2": (
        lambda make, root: make(ImageFolder(root, with_replaced_forward()), 4),
        lambda loader: loader.dataset.transform.transforms[0],
    ),
    "custom collate_fn": (
        lambda make, root: make(ImageFolder(root, train()), 4, collate_fn=labels_only),
        lambda loader: labels_only,
    ),
    "collate_fn that raises": (
        lambda make, root: make(ImageFolder(root, train()), 4, collate_fn=look_up),
        lambda loader: look_up,
    ),
    "collate_fn without batches": (
        lambda make, root: make(ImageFolder(root, train()), None, True, collate_fn=list),
        lambda loader: list,
    ),
    "timeout without workers": (
        lambda make, root: make(ImageFolder(root, train()), timeout=3),
        lambda loader: "timeout",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_native_is_named_and_runs_as_with_torch(
    pictures: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make, culprit_of = CASES[case]
    loader = make(DataLoader, pictures)
    explanation = loader.explain()
    assert explanation.path == "torch" and not explanation.native
    assert explanation.culprit is culprit_of(loader) or explanation.culprit == culprit_of(loader)
    assert capsys.readouterr().out == f"{explanation}\n"
    assert str(explanation).startswith("torch path, because of ")
    assert explanation.reason in str(explanation)

    assert_same_behaviour(lambda loader_type: make(loader_type, pictures), path="torch")


@pytest.mark.parametrize(
    "case", ["target_transform", "collate_fn that raises", "collate_fn without batches"]
)
def test_what_is_not_native_runs_on_torchs_workers(pictures: Path, case: str) -> None:
    def build(loader_type: Any) -> Any:
        def with_workers(*args: Any, **options: Any) -> Any:
            return loader_type(*args, num_workers=2, persistent_workers=True, **options)

        return CASES[case][0](with_workers, pictures)  # type: ignore[arg-type]

    assert_same_behaviour(build, epochs(2, at_most=5), "torch")


# torch's iterator complains of itself when it is deleted half made.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("options", [{"worker_init_fn": draw}, {"prefetch_factor": 0}])
def test_worker_options_that_are_not_native_run_as_with_torch(
    pictures: Path, options: dict[str, Any]
) -> None:
    def build(loader_type: Any) -> Any:
        return loader_type(ImageFolder(pictures, train()), 4, num_workers=1, **options)

    assert_same_behaviour(build, path=build(DataLoader).explain().path)


# --- the process --------------------------------------------------------------------------------


def double_stack(batch: Any, **_: Any) -> torch.Tensor:
    return torch.stack(batch) * 2


@contextlib.contextmanager
def other_collate(key: Any) -> Iterator[None]:
    before = dict(default_collate_fn_map)
    default_collate_fn_map[key] = double_stack
    try:
        yield
    finally:
        default_collate_fn_map.clear()
        default_collate_fn_map.update(before)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def image_backend(name: str) -> Iterator[None]:
    torchvision.set_image_backend(name)
    try:
        yield
    finally:
        torchvision.set_image_backend("PIL")


@contextlib.contextmanager
def global_hook() -> Iterator[None]:
    def hook(module: Any, _: Any, image: Any) -> Any:
        return image.rotate(90) if isinstance(module, v1.RandomResizedCrop) else None

    handle = register_module_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


PROCESSES: dict[str, tuple[Callable[[], Any], Any]] = {
    "default dtype": (lambda: default_dtype(torch.float64), "default dtype torch.float64"),
    "image backend": (lambda: image_backend("accimage"), "image backend accimage"),
    "collate of tensors": (lambda: other_collate(torch.Tensor), double_stack),
    "collate of lists": (lambda: other_collate(tuple), double_stack),
    "default device": (lambda: torch.device("meta"), "default device meta"),
    "global hook": (global_hook, "a global hook of torch.nn"),
    "return type": (
        lambda: tv_tensors.set_return_type("TVTensor"),
        "tv_tensors.set_return_type",
    ),
}


@pytest.mark.parametrize("process", PROCESSES)
def test_settings_of_the_process_are_respected(pictures: Path, process: str) -> None:
    enter, culprit = PROCESSES[process]
    pipeline = train_v2 if process == "return type" else train

    def build(loader_type: Any) -> Any:
        return loader_type(ImageFolder(pictures, pipeline()), batch_size=4)

    with enter():
        assert build(DataLoader).explain().culprit == culprit
        if process != "default device":  # under which torch's own loader does not get far
            assert_same_behaviour(build, path="torch")
    assert build(DataLoader).explain().native


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_collate_function_for_ints_is_consulted(pictures: Path, num_workers: int) -> None:
    def collate_ints(batch: Any, **_: Any) -> list[int]:
        return list(batch)

    def build(loader_type: Any) -> Any:
        return loader_type(ImageFolder(pictures, train()), 4, num_workers=num_workers)

    before = default_collate_fn_map[int]
    default_collate_fn_map[int] = collate_ints
    try:
        assert build(DataLoader).explain().culprit is collate_ints
        assert_same_behaviour(build, path="torch")
    finally:
        default_collate_fn_map[int] = before


# --- explain ------------------------------------------------------------------------------------


def test_a_native_loader_is_explained(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ImageFolder(pictures, evaluation())
    explanation = DataLoader(Subset(Subset(folder, range(9)), range(3))).explain()
    assert explanation.native and explanation.path == "native"
    assert explanation.culprit is None
    assert capsys.readouterr().out.startswith("native path")


class Unspeakable(list[int]):
    def __repr__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("dataset", [list(range(100_000)), Unspeakable([1, 2])])
def test_datasets_with_long_or_broken_reprs_are_explained(dataset: Any) -> None:
    assert len(str(DataLoader(dataset).explain())) < 300


@pytest.mark.parametrize("num_workers", [0, 2])
def test_explaining_changes_nothing(pictures: Path, num_workers: int) -> None:
    def build(loader_type: Any) -> Any:
        folder = ImageFolder(pictures, train())
        return loader_type(folder, batch_size=4, shuffle=True, num_workers=num_workers)

    def drive(loader: Any) -> Iterator[Any]:
        iterator = begin(loader)
        for _ in range(8):
            if isinstance(loader, DataLoader):
                loader.explain()
            yield step(iterator)
        end(iterator)

    assert_same_behaviour(build, drive)


# --- replaced parts -----------------------------------------------------------------------------


def fixed_params(image: Any, scale: Any, ratio: Any) -> tuple[int, int, int, int]:
    return 1, 2, 5, 4


def mirrored_item(self: ImageFolder, index: int) -> Any:
    image, label = DatasetFolder.__getitem__(self, index)
    return image.flip(-1), label


def black_picture(path: Any) -> Image.Image:
    return Image.new("RGB", (40, 30))


def open_red(*_: Any) -> Image.Image:
    return Image.new("RGB", (40, 30), "red")


@pytest.mark.parametrize(
    ("owner", "name", "replacement"),
    [
        (v1.RandomResizedCrop, "get_params", staticmethod(fixed_params)),
        (ImageFolder, "__getitem__", mirrored_item),
        (torchvision.datasets.folder, "pil_loader", black_picture),
        (Image, "open", open_red),
    ],
)
def test_replaced_parts_of_torchvision_and_pillow_are_run(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, replacement: Any
) -> None:
    def build(loader_type: Any) -> Any:
        return loader_type(ImageFolder(pictures, train()), batch_size=4)

    assert build(DataLoader).explain().native
    monkeypatch.setattr(owner, name, replacement)
    assert build(DataLoader).explain().culprit is getattr(owner, name)
    assert_same_behaviour(build, path="torch")
