"""What goes wrong is said with its name, its place and its remedy."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torchvision.datasets import ImageFolder

import headrace
from headrace import DataLoader
from lifetime import TRANSFORM, WORKERS, make_loader, make_pictures

PACKAGE = Path(headrace.__file__).parent


# --- samples --------------------------------------------------------------------------------------


def make_empty(path: Path) -> None:
    path.write_bytes(b"")


def make_text(path: Path) -> None:
    path.write_bytes(b"no picture")


def make_truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:600])


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("damage", "type_of_error"),
    [
        (make_empty, OSError),
        (make_text, OSError),
        (make_truncated, OSError),
        (make_directory, IsADirectoryError),
        (make_dangling, FileNotFoundError),
        (remove, FileNotFoundError),
    ],
)
@pytest.mark.parametrize("workers", WORKERS)
def test_a_failing_sample_is_named(
    tmp_path: Path, workers: int, damage: Callable[[Path], None], type_of_error: type[Exception]
) -> None:
    loader = make_loader(str(make_pictures(tmp_path)), workers)
    path = tmp_path / "0006" / "x.jpg"
    damage(path)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(type_of_error) as raised:
        next(iterator)
    assert raised.value.sample_path == str(path)
    assert raised.value.sample_index == 6
    if sys.version_info >= (3, 11):
        (note,) = raised.value.__notes__
        assert f"{path} (sample 6)" in note
    _, third = next(iterator)
    assert third.tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_failing_sample_is_named_by_its_place_in_a_subset(tmp_path: Path, workers: int) -> None:
    import torch

    folder = ImageFolder(make_pictures(tmp_path), TRANSFORM)
    (tmp_path / "0006" / "x.jpg").unlink()
    loader = DataLoader(torch.utils.data.Subset(folder, [3, 6]), num_workers=workers)
    with pytest.raises(FileNotFoundError) as raised:
        list(loader)
    assert raised.value.sample_path == str(tmp_path / "0006" / "x.jpg")
    assert raised.value.sample_index == 1


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threads": 0}, "threads must be at least 1"),
        ({"threads": -1}, "threads must be at least 1"),
        ({"read_budget_bytes": 0}, "read_budget_bytes must be at least 1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DataLoader([1, 2], **options)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="prefetch"):
        DataLoader([1, 2], prefetch=3)


# --- installation ---------------------------------------------------------------------------------


def import_with(tmp_path: Path, **modules: str) -> str:
    """What `import headrace` says where these modules have this text."""
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text)
    shutil.copytree(PACKAGE, tmp_path / "headrace", ignore=shutil.ignore_patterns("_core*"))
    ended = subprocess.run(
        [sys.executable, "-c", "import headrace"],
        env=dict(os.environ, PYTHONPATH=str(tmp_path)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    last_line = ended.stderr.strip().splitlines()[-1]
    assert last_line.startswith("ImportError: "), ended.stderr
    return last_line


GOOD = "__version__ = '99.0'"
MISSING = "raise ModuleNotFoundError('No such module')"


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ({"torch": MISSING}, ["torch 2.", "or newer", "pip install"]),
        ({"torch": "__version__ = '1.13.1+cpu'"}, ["torch 2.", "1.13.1+cpu", "pip install"]),
        ({"torch": GOOD, "torchvision": MISSING}, ["torchvision 0.", "or newer", "pip install"]),
        (
            {"torch": GOOD, "torchvision": "__version__ = '0.9'"},
            ["torchvision 0.", "0.9 is installed", "pip install"],
        ),
        (
            {"torch": GOOD, "torchvision": GOOD},
            ["headrace._core", "not built", "pip install"],
        ),
    ],
    ids=["no torch", "old torch", "no torchvision", "old torchvision", "no core"],
)
def test_the_import_says_what_is_missing_and_what_to_do(
    tmp_path: Path, modules: dict[str, str], words: list[str]
) -> None:
    message = import_with(tmp_path, **modules)
    for word in words:
        assert word in message
