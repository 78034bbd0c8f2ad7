"""The self-check finds what differs from the installed packages, and remembers what has passed."""

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import PIL
import pytest
import torch
import torchvision
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2

from headrace import DataLoader, Explanation, recipe, selfcheck
from support import assert_same_behaviour, evaluation, train, train_v2


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing is remembered, here or on disk. Yields the folder of the memory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # Fewer probes find the plain faults that are planted here.
    monkeypatch.setitem(selfcheck.PROBES, "draws", 300)
    monkeypatch.setitem(selfcheck.PROBES, "sizes", [(50, 37), (64, 64), (1, 1), (17, 900)])
    selfcheck.forget()
    yield tmp_path / "headrace"
    monkeypatch.undo()
    selfcheck.forget()


def explain(root: Path, pipeline: Callable[[], Any] = train) -> Explanation:
    return DataLoader(ImageFolder(root, pipeline())).explain()


def assert_found(root: Path, text: str, pipeline: Callable[[], Any] = train) -> None:
    """The self-check says `text`, and the loader gives torch's batches on torch's path."""
    explanation = explain(root, pipeline)
    assert explanation.culprit == "the self-check"
    assert text in explanation.reason

    def build(loader_type: Any) -> Any:
        return loader_type(ImageFolder(root, pipeline()), batch_size=4, shuffle=True)

    assert_same_behaviour(build, path="torch")


# --- what is wrong is found ---------------------------------------------------------------------


@pytest.mark.parametrize("wide_range", [1 << 20, (1 << 28) - 1, (1 << 28) + 1, 1 << 32])
def test_a_wrong_range_of_randint_is_found(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, wide_range: int
) -> None:
    monkeypatch.setitem(selfcheck.PROBES, "wide_range", wide_range)
    assert_found(pictures, "torch.randint")


def test_a_wrong_rounding_of_uniform_is_found(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused = selfcheck._uniform_is_fused()
    monkeypatch.setattr(selfcheck, "_uniform_is_fused", lambda: not fused)
    assert_found(pictures, "uniform_(")


def test_another_generator_in_torch_is_found(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rand = torch.rand
    monkeypatch.setattr(torch, "rand", lambda *size: 1 - rand(*size))
    explanation = explain(pictures)
    assert "torch.rand gives other numbers" in explanation.reason


def test_another_order_of_resize_passes_is_found(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for order in ("width_first", "width_first_unless_tall", "by_size"):
        if order != recipe.resize_passes():
            monkeypatch.setattr(recipe, "resize_passes", lambda order=order: order)
            selfcheck.forget()
            if not explain(pictures).native:
                break
    else:
        pytest.fail("no wrong order of passes was found")
    assert "pixels" in explain(pictures).reason


def change(original: Callable[[Any], Any], **values: Any) -> Callable[[Any], Any]:
    return lambda transform: original(transform) | values


def next_float(value: float) -> float:
    single = torch.tensor(value)
    return float(torch.nextafter(single, single + 1))


@pytest.mark.parametrize(
    ("kind", "values", "pipeline"),
    [
        (v1.Normalize, {"mean": [next_float(0.485), 0.456, 0.406]}, train),
        (v1.Normalize, {"std": [0.229, 0.224, next_float(0.225)]}, train),
        (v2.Normalize, {"mean": [0.406, 0.456, 0.485]}, train_v2),
        (v1.RandomHorizontalFlip, {"p": 0.0}, train),
        (v1.RandomResizedCrop, {"scale": [0.09, 1.0]}, train),
        (v1.RandomResizedCrop, {"interpolation": "bicubic"}, train),
        (v1.Resize, {"size": 29}, evaluation),
        (v1.CenterCrop, {"op": "resize"}, evaluation),
    ],
)
def test_a_transform_that_is_read_wrongly_is_found(
    pictures: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Any],
    values: dict[str, Any],
    pipeline: Callable[[], Any],
) -> None:
    wrong = change(recipe._OPERATIONS[kind], **values)
    monkeypatch.setitem(recipe._OPERATIONS, kind, wrong)
    assert_found(pictures, "differ", pipeline)


@pytest.mark.parametrize(
    ("kind", "values"),
    [(v1.Normalize, {"mean": [0.5, 0.5, 0.5]}), (v1.RandomHorizontalFlip, {"p": 1.0})],
)
def test_a_pipeline_is_checked_though_all_else_is_remembered(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Any], values: dict[str, Any]
) -> None:
    assert explain(pictures).native
    selfcheck.forget()
    monkeypatch.setitem(recipe._OPERATIONS, kind, change(recipe._OPERATIONS[kind], **values))
    assert_found(pictures, "differ after Compose")


@pytest.mark.parametrize("part", ["_compare_draws", "_compare_samples", "_compare_on"])
def test_a_check_that_fails_itself_is_no_error(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def fail(*_: Any) -> str:
        raise AttributeError("torch has changed")

    monkeypatch.setattr(selfcheck, part, fail)
    assert_found(pictures, "torch has changed")


# --- it disturbs nobody -------------------------------------------------------------------------


def test_the_generators_stand_where_they_stood(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(seed: int) -> None:
        raise AssertionError("it seeds the generators of all devices")

    monkeypatch.setattr(torch, "manual_seed", refuse)
    before = torch.get_rng_state()
    assert explain(pictures).native
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("limit", [0, 100, None])
def test_pillows_pixel_limit_does_not_disturb_it(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    assert explain(pictures).native
    assert limit == Image.MAX_IMAGE_PIXELS


# --- its memory ---------------------------------------------------------------------------------


def test_a_passed_check_is_remembered_on_disk(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, fresh: Path
) -> None:
    assert explain(pictures).native
    assert len(list(fresh.iterdir())) == 1

    def refuse(rules: Any) -> str:
        return "it was done again"

    monkeypatch.setattr(selfcheck, "_compare_draws", refuse)
    selfcheck.forget()
    assert explain(pictures).native
    next(fresh.iterdir()).unlink()
    selfcheck.forget()
    assert explain(pictures).reason == "it was done again"


def test_a_failed_check_is_not_remembered(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, fresh: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(selfcheck.PROBES, "wide_range", 1 << 20)
        assert not explain(pictures).native
    assert not fresh.exists() or not list(fresh.iterdir())
    selfcheck.forget()
    assert explain(pictures).native


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (torch, "__version__", "3.0"),
        (torchvision, "__version__", "1.0"),
        (PIL, "__version__", "99.0"),
        (selfcheck, "__version__", "99.0"),
        (platform, "python_version", lambda: "4.0"),
        (torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT"),
        (selfcheck, "_processor", lambda: "another"),
        (selfcheck, "_core_fingerprint", lambda: "another build"),
        (selfcheck.PIL.features, "version_feature", lambda _: "99"),
    ],
)
def test_the_memory_holds_for_one_combination_only(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, value: Any
) -> None:
    rules = {"wide_range": 1}
    here = selfcheck._remembered(rules)
    assert here == selfcheck._remembered(dict(rules))
    monkeypatch.setattr(owner, name, value)
    assert selfcheck._remembered(rules) != here


def test_the_memory_holds_for_one_set_of_rules_and_probes_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = {"wide_range": 1}
    files = {selfcheck._remembered(rules), selfcheck._remembered(rules | {"wide_range": 5})}
    for name, value in selfcheck.PROBES.items():
        with monkeypatch.context() as patch:
            patch.setitem(selfcheck.PROBES, name, value[:-1] if isinstance(value, list) else 7)
            files.add(selfcheck._remembered(rules))
    assert len(files) == 2 + len(selfcheck.PROBES)


@pytest.mark.parametrize(
    "place", ["/dev/null/cache", "/proc/cache", "/" + 3000 * "x", "/tmp\udcff/\udcff", "relative"]
)
def test_a_place_that_cannot_be_written_is_no_error(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    monkeypatch.chdir(tmp_path)
    assert explain(pictures).native
    assert not list(tmp_path.iterdir())


# --- another arithmetic -------------------------------------------------------------------------


SCRIPT = """
import sys
import torch
from support import *
from torchvision.datasets import ImageFolder

def build(loader_type):
    return loader_type(ImageFolder(sys.argv[1], train()), 4, shuffle=True, num_workers=workers)

for workers in (0, 1):
    assert_same_behaviour(build)
print(torch.backends.cpu.get_cpu_capability())
"""


def test_torch_without_vector_instructions_is_matched_too(pictures: Path) -> None:
    search = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "default", "PYTHONPATH": search}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(pictures)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] in ("DEFAULT", "NO AVX")


def test_interpolation_modes_of_pillow_are_read_as_torchvision_reads_them(pictures: Path) -> None:
    for mode in InterpolationMode:
        pipeline = v1.Compose([v1.Resize((20, 30), mode), v1.PILToTensor()])

        def build(loader_type: Any, pipeline: Any = pipeline) -> Any:
            return loader_type(ImageFolder(pictures, pipeline), batch_size=4)

        assert_same_behaviour(build, path=build(DataLoader).explain().path)
