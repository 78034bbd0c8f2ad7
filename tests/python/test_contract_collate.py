"""Collate functions: the registry of default_collate, MixUp and CutMix, and no collation at all."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import default_collate
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from headrace import DataLoader
from support import (
    Build,
    assert_same_behaviour,
    begin,
    changed,
    end,
    epochs,
    step,
    train,
    train_uint8,
    train_v2,
)

CLASSES = 3


def loader_of(root: Path, pipeline: Callable[[], Any] = train, **options: Any) -> Build:
    def build(loader_type: Any) -> Any:
        return loader_type(ImageFolder(root, pipeline()), **{"batch_size": 4, **options})

    return build


# --- MixUp and CutMix -----------------------------------------------------------------------------

mixup = v2.MixUp(num_classes=CLASSES)
either = v2.RandomChoice([v2.CutMix(num_classes=CLASSES), mixup], p=[0.3, 0.7])


class Holder:
    """As a module of a training script holds its transforms."""

    mixing: Any = None

    def __init__(self, mixing: Any) -> None:
        self.mixing = mixing

    def function(self) -> Callable[[Any], Any]:
        return lambda batch: self.mixing(*default_collate(batch))


class ModuleHolder(torch.nn.Module):
    def __init__(self, mixing: Any) -> None:
        super().__init__()
        self.mixing = mixing

    def function(self) -> Callable[[Any], Any]:
        return lambda batch: self.mixing(*default_collate(batch))


def of_a_global(batch: Any) -> Any:
    """Has a docstring."""
    return either(*default_collate(batch))


def in_steps(batch: Any) -> Any:
    images, labels = default_collate(batch)
    return mixup(images, labels)


def in_two_lines(batch: Any) -> Any:
    batch = torch.utils.data.default_collate(batch)
    return mixup(*batch)


def in_a_list(batch: Any) -> Any:
    collated = torch.utils.data.dataloader.default_collate(batch)
    return either(collated)


def of_a_closure(mixing: Any, spread: bool = True) -> Callable[[Any], Any]:
    if spread:
        return lambda batch: mixing(*default_collate(batch))
    collate = default_collate
    return lambda samples: mixing(collate(samples))


MIXINGS: dict[str, Callable[[], Any]] = {
    "global": lambda: of_a_global,
    "steps": lambda: in_steps,
    "two lines": lambda: in_two_lines,
    "list": lambda: in_a_list,
    "closure": lambda: of_a_closure(v2.CutMix(alpha=0.4, num_classes=CLASSES)),
    "closure, list": lambda: of_a_closure(v2.MixUp(alpha=3, num_classes=CLASSES), False),
    "attribute": lambda: Holder(v2.CutMix(num_classes=5)).function(),
    "attribute of a module": lambda: ModuleHolder(either).function(),
    "nested choice": lambda: of_a_closure(v2.RandomChoice([either, mixup])),
    "without classes": lambda: of_a_closure(v2.MixUp()),
    "too few classes": lambda: of_a_closure(v2.CutMix(num_classes=2)),
}


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2, "shuffle": True}])
@pytest.mark.parametrize("mixing", MIXINGS)
def test_mixed_batches_equal_torchs(
    mixed_pictures: Path, mixing: str, options: dict[str, Any]
) -> None:
    build = loader_of(mixed_pictures, collate_fn=MIXINGS[mixing](), **options)
    assert_same_behaviour(build)


@pytest.mark.parametrize("pipeline", [train_uint8, train_v2])
def test_batches_of_any_pipeline_are_mixed(pictures: Path, pipeline: Callable[[], Any]) -> None:
    options = {"batch_size": 6, "num_workers": 3, "persistent_workers": True}
    build = loader_of(pictures, pipeline, collate_fn=of_a_global, shuffle=True, **options)
    assert_same_behaviour(build, epochs(3, at_most=3))


def test_a_mixing_that_changes_is_followed(pictures: Path) -> None:
    """Without workers at the next batch, with workers not before the next iterator."""

    def drive(loader: Any) -> Iterator[Any]:
        holder = loader.holder
        for number in range(2):
            iterator = begin(loader)
            for _ in range(12 if number == 0 else 2):
                yield step(iterator)
            holder.mixing.num_classes = 7
            yield step(iterator)
            holder.mixing = v2.CutMix(num_classes=4)
            yield step(iterator)
            holder.mixing = v2.GaussianBlur(3)  # is no mixing
            yield step(iterator)
            holder.mixing = v2.MixUp(num_classes=CLASSES)
            yield step(iterator)
            end(iterator)

    for num_workers in (0, 1):

        def build(loader_type: Any, num_workers: int = num_workers) -> Any:
            holder = Holder(v2.MixUp(num_classes=CLASSES))
            dataset = ImageFolder(pictures, train())
            options = {"shuffle": True, "num_workers": num_workers}
            loader = loader_type(dataset, 1, collate_fn=holder.function(), **options)
            loader.holder = holder
            return loader

        assert_same_behaviour(build, drive)


def test_what_a_caller_draws_between_mixed_batches_counts(pictures: Path) -> None:
    def drive(loader: Any) -> Iterator[Any]:
        iterator = iter(loader)
        for number in range(20):
            yield step(iterator)
            if number % 7 == 3:
                yield torch.rand(1)
            if number % 5 == 4:
                yield torch.randn(1)  # torch keeps its second half for the next

    build = loader_of(pictures, collate_fn=of_a_global, batch_size=1, shuffle=True)
    assert_same_behaviour(build, drive)


def test_converted_batches_are_mixed_before(pictures: Path) -> None:
    folder = ImageFolder(pictures, train())
    options: dict[str, Any] = {"collate_fn": of_a_global, "num_workers": 1}
    ours = DataLoader(folder, 4, dtype=torch.bfloat16, **options)
    assert ours.explain().native
    torch.manual_seed(4)
    expected = list(torch.utils.data.DataLoader(folder, 4, **options))
    torch.manual_seed(4)
    for (images, labels), (exact, exact_labels) in zip(ours, expected, strict=True):
        assert torch.equal(images, exact.bfloat16())
        assert torch.equal(labels, exact_labels)


# --- what is not native ---------------------------------------------------------------------------


class OwnMixUp(v2.MixUp):
    pass


def add_one(batch: Any) -> Any:
    images, labels = default_collate(batch)
    return mixup(images, labels + 1)


def with_a_default(batch: Any, mixing: Any = mixup) -> Any:
    return mixing(*default_collate(batch))


def swapped(batch: Any) -> Any:
    images, labels = default_collate(batch)
    return labels, images


def in_the_wrong_order(batch: Any) -> Any:
    return default_collate(mixup(*batch))


def of_every_second(batch: Any) -> Any:
    return mixup(*default_collate(batch[::2]))


def generated(batch: Any) -> Any:
    yield mixup(*default_collate(batch))


def unchanged_labels(batch: Any) -> Any:
    return batch[1]


OTHERS: dict[str, Any] = {
    "arithmetic": add_one,
    "default argument": with_a_default,
    "swapped": swapped,
    "wrong order": in_the_wrong_order,
    "slice": of_every_second,
    "subclass": of_a_closure(OwnMixUp(num_classes=3)),
    "other transform": of_a_closure(v2.RandomHorizontalFlip()),
    "other in a choice": of_a_closure(v2.RandomChoice([mixup, v2.Identity()])),
    "own labels_getter": of_a_closure(v2.MixUp(num_classes=3, labels_getter=unchanged_labels)),
    "mixup alone": mixup,
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_functions_are_run_by_torch(pictures: Path, other: str) -> None:
    assert_same_behaviour(loader_of(pictures, collate_fn=OTHERS[other]), epochs(1, 3), "torch")


def test_a_generator_function_is_not_taken_for_its_body(pictures: Path) -> None:
    assert loader_of(pictures, collate_fn=generated)(DataLoader).explain().culprit is generated


def test_a_replaced_method_of_mixup_is_run(pictures: Path) -> None:
    def no_draws(self: Any, flat_inputs: Any) -> Any:
        return {"lam": 0.25}

    with changed(v2.MixUp, make_params=no_draws):
        assert_same_behaviour(loader_of(pictures, collate_fn=in_steps), epochs(1), "torch")


def test_another_default_collate_is_run(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def first_only(batch: Any) -> Any:
        return default_collate(batch[:1])

    build = loader_of(pictures, collate_fn=in_two_lines)
    assert build(DataLoader).explain().native
    monkeypatch.setattr(torch.utils.data, "default_collate", first_only)
    assert_same_behaviour(build, epochs(1), "torch")


def test_draws_that_differ_without_data_are_found(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.collate import Mixing

    def draws_once_more(self: Any, images: Any, dtype: Any) -> None:
        original(self, images, dtype)
        torch.rand(1)

    original = Mixing.draw
    monkeypatch.setattr(Mixing, "draw", draws_once_more)
    loader = loader_of(pictures, collate_fn=of_a_closure(v2.MixUp(num_classes=3)))(DataLoader)
    assert "draws otherwise" in loader.explain().reason


# --- no collation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("pipeline", [train, train_v2, train_uint8])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True},
        {"sampler": [3, torch.tensor(4), 2.5, -1, 99, [1], slice(0, 2), None, "0", 38, 1]},
        {"num_workers": 2, "shuffle": True, "persistent_workers": True},
        {"num_workers": 3, "prefetch_factor": 5, "timeout": 60},
    ],
)
def test_single_samples_equal_torchs(
    mixed_pictures: Path, pipeline: Callable[[], Any], options: dict[str, Any]
) -> None:
    assert_same_behaviour(loader_of(mixed_pictures, pipeline, batch_size=None, **options))


@pytest.mark.parametrize("convert", [v1.ToTensor, v1.PILToTensor, v2.ToImage])
def test_single_samples_of_one_pixel_and_more(pictures: Path, convert: Any) -> None:
    """One pixel has other strides, whichever size is seen first."""
    for size in (1, (1, 6), (6, 1), 6):

        def pipeline(size: Any = size) -> Any:
            return v2.Compose([v2.CenterCrop(size), convert()])

        assert_same_behaviour(loader_of(pictures, pipeline, batch_size=None))


def test_single_samples_with_a_collate_function_are_torchs(pictures: Path) -> None:
    def first(sample: Any) -> Any:
        return sample[0]

    for collate_fn in (first, default_collate):
        build = loader_of(pictures, batch_size=None, collate_fn=collate_fn)
        assert_same_behaviour(build, epochs(1), "torch")


@pytest.mark.parametrize("steps", [[], [v2.CenterCrop(9)], [v2.Normalize([0.5], [0.5])]])
def test_a_transform_that_gives_no_tensor_or_fails_is_torchs(
    pictures: Path, steps: list[Any]
) -> None:
    pipeline = partial(v2.Compose, [v2.Identity(), *steps])
    build = loader_of(pictures, pipeline, batch_size=None)
    assert not build(DataLoader).explain().native
    for failing in ([v1.Resize((9, 9), max_size=20), v1.ToTensor()], [v2.CenterCrop(9)]):
        build = loader_of(pictures, partial(v1.Compose, failing), batch_size=None)
        assert not build(DataLoader).explain().native


def test_tv_tensors_are_collated_to_plain_tensors_and_single_ones_stay(pictures: Path) -> None:
    folder = ImageFolder(pictures, v2.Compose([v2.CenterCrop(20), v2.ToImage()]))
    for batch_size, expected in ((3, torch.Tensor), (None, tv_tensors.Image)):
        loader = DataLoader(folder, batch_size)
        assert loader.explain().native
        images, _ = next(iter(loader))
        assert type(images) is expected


# --- what comes of it -----------------------------------------------------------------------------


class Fixed(dict[str, Any]):
    """Cannot be made from a dict again."""

    def __init__(self, size: int) -> None:
        super().__init__(size=size)


MADE: dict[str, Callable[[Any], Any]] = {
    "channels last": lambda batch: torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "transposed": lambda batch: {"images": torch.ones(2, 4, 4, 3).permute(0, 3, 1, 2)},
    "expanded": lambda batch: [torch.ones(1, 1, 1, 1).expand(2, 3, 4, 4)],
    "defaultdict": lambda batch: defaultdict(list, images=torch.ones(2, 3, 4, 4)),
    "own dict": lambda batch: Fixed(len(batch)),
    "generator's tuple": lambda batch: (*batch, None),
}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("made", MADE)
def test_what_a_collate_function_makes_comes_with_its_types_and_strides(
    made: str, num_workers: int
) -> None:
    def build(loader_type: Any) -> Any:
        return loader_type(range(4), 2, collate_fn=MADE[made], num_workers=num_workers)

    assert_same_behaviour(build, epochs(1), "torch")


def test_what_a_collate_function_makes_is_the_very_object() -> None:
    made: list[Any] = []

    def collate(batch: Any) -> Any:
        made.append(defaultdict(list, images=torch.ones(2, 3, 4, 4)))
        return made[-1]

    assert [id(batch) for batch in DataLoader(range(4), 2, collate_fn=collate)] == [*map(id, made)]  # type: ignore[arg-type]
    converted: Any = DataLoader(range(4), 2, collate_fn=collate, dtype=torch.half)  # type: ignore[arg-type]
    for batch in converted:
        assert type(batch) is defaultdict and batch["images"].dtype == torch.half
        assert batch.default_factory is list and made[-1]["images"].dtype == torch.float32


class Pins:
    """Says how often it was pinned."""

    def __init__(self, times: int = 0) -> None:
        self.times = times

    def pin_memory(self, device: Any = None) -> "Pins":
        return Pins(self.times + 1)


def test_an_objects_own_pin_memory_is_called_once_as_by_torch() -> None:
    def collate(batch: Any) -> Any:
        return Pins(), (Pins(), "text", b"bytes"), {"of": [Pins()]}

    def times_of(loader_type: Any) -> Any:
        iterator = iter(loader_type(range(3), collate_fn=collate))
        iterator._pin_memory = True  # as if there were an accelerator
        one, (other, text, data), mapping = next(iterator)
        return one.times, other.times, text, data, mapping["of"][0].times

    assert (
        times_of(DataLoader) == times_of(torch.utils.data.DataLoader) == (1, 1, "text", b"bytes", 1)
    )
