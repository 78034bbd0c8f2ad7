"""Random pipelines, files, datasets and settings: the same as torch's, on whichever path.

`pytest --hypothesis-profile=long --timeout=0 tests/python/test_property.py` tries thousands of
examples, other ones each time; without it a few hundred are tried, always the same.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, Subset, default_collate, default_convert
from torchvision.datasets import ImageFolder

from headrace import DataLoader
from strategies import (
    LONG,
    Images,
    Make,
    Settings,
    datasets,
    foreign,
    loader_settings,
    often,
    pipelines,
)
from support import (
    Raised,
    Step,
    assert_same,
    assert_same_behaviour,
    assert_same_events,
    changed,
    end,
    epochs,
    observe,
    one_epoch,
    step,
    train,
    without_addresses,
)

SECONDS = 0 if LONG else 600  # for all examples of a test


def seen(paths: Counter[str], loader: DataLoader[Any]) -> str:
    path = loader.explain().path
    paths[path] += 1
    event(f"{path} path")
    return path


# --- as torch -----------------------------------------------------------------------------------

pillow_settings = often(
    st.just({}),
    st.sampled_from([{"LOAD_TRUNCATED_IMAGES": True}, {"MAX_IMAGE_PIXELS": 1000}]),
)


@pytest.mark.timeout(SECONDS)
def test_random_loaders_behave_as_torchs() -> None:
    paths = Counter[str]()

    @given(pipelines(), datasets(), loader_settings(), pillow_settings, st.integers(1, 9))
    def behaves(
        pipeline: Make, images: Images, chosen: Settings, pillow: dict[str, Any], at_most: int
    ) -> None:
        def build(loader_type: Any) -> Any:
            return chosen.build(loader_type, images.build(pipeline))

        owner: Any = Image if "MAX_IMAGE_PIXELS" in pillow else ImageFile
        with changed(owner, **pillow):
            path = seen(paths, build(DataLoader))
            assert_same_behaviour(build, epochs(2, at_most), path)

    behaves()
    assert paths["native"] > paths.total() / 2


# --- rules for samples --------------------------------------------------------------------------

rules = st.fixed_dictionaries(
    {
        "on_error": st.sampled_from(["raise", "skip", "skip", "replace", "replace"]),
        "rng": st.sampled_from(["torch", "counter"]),
    },
    optional={"max_errors": st.sampled_from([None, None, None, 0, 3])},
)


class Tolerant(Dataset[Any]):
    """None for samples that cannot be loaded: what users of torch do."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        try:
            return self.dataset[index]
        except Exception:
            return None


def tolerant(chosen: Settings, dataset: Any) -> Any:
    """torch's loader without the samples that cannot be loaded; None for batches without any."""

    def collate(batch: Any) -> Any:
        if chosen.options["batch_size"] is None and chosen.sampler != "batches":
            return None if batch is None else default_convert(batch)
        left = [sample for sample in batch if sample is not None]
        return whole(left) if left else None

    whole: Any = chosen.converting(default_collate) if chosen.output else default_collate
    loader = chosen.build(TorchLoader, Tolerant(dataset))
    loader.collate_fn = collate
    return loader


def without_empty_batches(loader: Any) -> Iterator[Any]:
    yield from (each for each in epochs(2)(loader) if each is not None)


def outcomes(steps: list[Step]) -> list[Any]:
    """The batches, and the types of exceptions: workers put their traces into the texts."""
    return [each.event.type if isinstance(each.event, Raised) else each.event for each in steps]


@pytest.mark.timeout(SECONDS)
def test_random_rules_are_kept_alike_on_both_paths() -> None:
    paths = Counter[str]()

    @given(
        pipelines(wild=False),
        datasets(),
        loader_settings(ruled=True),
        rules,
        st.sampled_from([0, 1, 4]),
    )
    def kept(
        pipeline: Make, images: Images, chosen: Settings, rules: dict[str, Any], other: int
    ) -> None:
        def native(loader_type: Any = DataLoader, **more: Any) -> Any:
            return chosen.build(loader_type, images.build(pipeline), **rules, **more)

        def on_torchs_path(loader_type: Any) -> Any:
            return chosen.build(loader_type, images.build(foreign(pipeline)), **rules)

        def as_users_do(loader_type: Any) -> Any:
            return tolerant(chosen, images.build(pipeline))

        def drive(loader: Any) -> Iterator[Any]:
            yield from epochs(2)(loader)
            errors = [
                each._replace(cause=without_addresses(each.cause)) for each in loader.errors()
            ]
            yield [tuple(error) for error in errors], loader.error_count

        seen(paths, native())
        found, _ = observe(native, drive, DataLoader)
        expected, _ = observe(on_torchs_path, drive, DataLoader)
        assert_same_events(found, expected)
        if rules["on_error"] == "skip" and rules["rng"] == "torch" and "max_errors" not in rules:
            found, _ = observe(native, epochs(2), DataLoader)
            expected, _ = observe(
                lambda _: tolerant(chosen, images.build(pipeline)),
                without_empty_batches,
                TorchLoader,
            )
            assert_same_events(found, expected)
        if rules["rng"] == "counter":

            def with_other_workers(loader_type: Any) -> Any:
                plain = {**chosen.options, "num_workers": other}
                for name in ("prefetch_factor", "persistent_workers", "timeout"):
                    plain.pop(name, None)
                replaced = Settings(plain, chosen.sampler, chosen.generator, output=chosen.output)
                return replaced.build(loader_type, images.build(pipeline), **rules)

            found, _ = observe(with_other_workers, epochs(1), DataLoader)
            expected, _ = observe(native, epochs(1), DataLoader)
            assert_same(outcomes(found), outcomes(expected))

    kept()
    assert paths["native"] > paths.total() / 2


# --- checkpoints --------------------------------------------------------------------------------


@pytest.mark.timeout(SECONDS)
def test_random_loaders_go_on_from_any_cut() -> None:
    paths = Counter[str]()

    @given(
        pipelines(wild=False),
        datasets(),
        loader_settings(ruled=True),
        rules,
        st.sampled_from([True, True, False]),
        st.integers(0, 1),
        st.integers(0, 9),
    )
    def goes_on(
        pipeline: Make,
        images: Images,
        chosen: Settings,
        rules: dict[str, Any],
        native: bool,
        epochs_before: int,
        cut: int,
    ) -> None:
        def make() -> Any:
            dataset = images.build(pipeline if native else foreign(pipeline))
            return chosen.build(DataLoader, dataset, resumable=True, **rules)

        def rest_of_epoch(iterator: Any) -> Iterator[Any]:
            """Of exceptions the type: the checkpoint says how many samples failed, not which."""
            while (event := step(iterator)) != "the end":
                yield event if not isinstance(event, Raised) else event.type

        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)  # noqa: NPY002
        loader = make()
        seen(paths, loader)
        for _ in range(epochs_before):
            list(one_epoch(loader))
        iterator = iter(loader)
        for _ in range(cut):
            step(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
        wanted = [list(rest_of_epoch(iterator)), list(rest_of_epoch(iter(loader)))]
        end(iterator)

        torch.manual_seed(99)
        resumed = make()
        resumed.load_state_dict(state)
        iterator = None if state["finished"] else iter(resumed)
        rest = list(rest_of_epoch(iterator)) if iterator is not None else []
        assert_same([rest, list(rest_of_epoch(iter(resumed)))], wanted)
        assert resumed.error_count == loader.error_count
        for each in (loader._iterator, iterator, resumed._iterator):
            end(each)

    goes_on()
    assert paths["native"] > paths.total() / 4


# --- callers ------------------------------------------------------------------------------------


class Caller:
    """A caller's deeds, each of which says what came of it."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.iterators = [iter(loader)]
        self.folder = loader.dataset.dataset

    def next_batch(self) -> Any:
        return step(self.iterators[-1])

    def next_of_another(self) -> Any:
        return step(self.iterators[0])

    def some_batches(self) -> Any:
        return [step(self.iterators[-1]) for _ in range(10)]

    def new_iterator(self) -> Any:
        self.iterators.append(iter(self.loader))
        return len(self.iterators[-1])

    def draw(self) -> Any:
        return torch.rand(3)

    def seed(self) -> Any:
        torch.manual_seed(7)

    def change_transform(self) -> Any:
        steps = self.folder.transform.transforms
        steps[0].size = (steps[0].size[0] % 9 + 8, 10)

    def leave_the_native_path(self) -> Any:
        self.folder.target_transform = negative

    def return_to_the_native_path(self) -> Any:
        self.folder.target_transform = None

    def change_samples(self) -> Any:
        self.folder.samples.append(self.folder.samples.pop(0))

    def change_a_label(self) -> Any:
        self.folder.samples[3] = (self.folder.samples[3][0], 2.5)

    def tolerate_truncation(self) -> Any:
        ImageFile.LOAD_TRUNCATED_IMAGES = not ImageFile.LOAD_TRUNCATED_IMAGES


def negative(label: int) -> int:
    return -label


deeds = st.lists(
    st.sampled_from(
        [Caller.next_batch] * 8 + [f for name, f in vars(Caller).items() if name[0] != "_"]
    ),
    min_size=5,
    max_size=40,
)


@pytest.mark.timeout(SECONDS)
@settings(suppress_health_check=list(HealthCheck))
@given(deeds, st.integers(1, 5), st.booleans(), st.sampled_from([0] * 9 + [1]))
def test_random_callers_are_served_as_by_torch(
    mixed_pictures: Path,
    deeds: list[Callable[[Caller], Any]],
    batch: int,
    shuffle: bool,
    workers: int,
) -> None:
    def build(loader_type: Any) -> Any:
        folder = ImageFolder(mixed_pictures, train(16))
        return loader_type(Subset(folder, range(33)), batch, shuffle, num_workers=workers)

    def drive(loader: Any) -> Iterator[Any]:
        with changed(ImageFile, LOAD_TRUNCATED_IMAGES=False):
            caller = Caller(loader)
            for deed in deeds:
                yield deed(caller)
            for iterator in caller.iterators:
                end(iterator)

    assert_same_behaviour(build, drive)
