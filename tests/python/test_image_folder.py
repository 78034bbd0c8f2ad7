"""headrace.ImageFolder lists what torchvision's does, and keeps the listing while it holds."""

import multiprocessing
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torchvision.datasets

import headrace
from headrace import ImageFolder, listing
from support import assert_same_behaviour, train
from test_source import TREES, make_tree

FILES = ["a/x.jpg", "a/b/y.png", "a/empty/", "c/z.jpg", "c/w.webp"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "headrace"


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The roots that were listed, not taken from what was kept."""
    roots: list[str] = []
    original = listing.list_image_folder

    def counting(root: str, **options: Any) -> Any:
        roots.append(root)
        return original(root, **options)

    monkeypatch.setattr(listing, "list_image_folder", counting)
    return roots


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_tree(tmp_path / "data", FILES)
    settle(tmp_path / "data")
    return tmp_path / "data"


def settle(root: Path) -> None:
    """Makes the directories as old as if they had been written long ago."""
    for folder, _, _ in os.walk(root):
        os.utime(folder, ns=(0, time.time_ns() - 3600 * 10**9))


def assert_as_torchvision(root: Any, **options: Any) -> ImageFolder:
    expected = torchvision.datasets.ImageFolder(root, **options)
    found = ImageFolder(root, **options)
    for name in ("classes", "class_to_idx", "samples", "targets", "root", "extensions"):
        assert getattr(found, name) == getattr(expected, name), name
    assert found.imgs is found.samples
    assert set(vars(found)) == set(vars(expected))
    return found


@pytest.mark.parametrize("files", TREES.values(), ids=TREES.keys())
def test_lists_as_torchvision_at_first_and_again(
    files: list[str], tmp_path: Path, listings: list[str]
) -> None:
    make_tree(tmp_path / "data", files)
    settle(tmp_path / "data")
    assert_as_torchvision(str(tmp_path / "data"))
    assert_as_torchvision(str(tmp_path / "data"))
    assert len(listings) == 1


def test_the_loader_takes_it_natively(pictures: Path) -> None:
    def build(loader_type: Any) -> Any:
        kind = ImageFolder if loader_type is headrace.DataLoader else torchvision.datasets
        folder = getattr(kind, "ImageFolder", kind)(pictures, train())
        return loader_type(folder, batch_size=4, shuffle=True)

    assert_same_behaviour(build)


def test_it_pickles_and_takes_torchvisions_arguments(root: Path) -> None:
    folder = ImageFolder(root, str, int, print)
    assert isinstance(folder, torchvision.datasets.ImageFolder)
    assert (folder.transform, folder.target_transform, folder.loader) == (str, int, print)
    assert pickle.loads(pickle.dumps(folder)).samples == folder.samples


@pytest.mark.parametrize("spelling", ["data", "./data", "data/", "data/../data", Path("data")])
def test_spellings_of_the_root(
    spelling: Any, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for _ in range(2):
        assert_as_torchvision(spelling)
        assert_as_torchvision("~/data")


def test_one_spelling_in_two_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listings: list[str]
) -> None:
    for place, name in (("one", "x.jpg"), ("two", "y.jpg")):
        make_tree(tmp_path / place / "data", [f"a/{name}"])
        settle(tmp_path / place)
        monkeypatch.chdir(tmp_path / place)
        assert_as_torchvision("data")
    assert len(listings) == 2


def is_jpg(path: str) -> bool:
    return path.endswith(".jpg")


@pytest.mark.parametrize(
    ("files", "options"),
    [
        ([], {}),
        (["x.jpg"], {}),
        (["a/x.jpg", "b/"], {}),
        (["a/x.jpg", "b/"], {"allow_empty": True}),
        (["a/x.jpg", "b/x.png"], {"is_valid_file": is_jpg}),
        (["a/x.jpg", "b/x.png"], {"is_valid_file": is_jpg, "allow_empty": True}),
    ],
)
def test_options_and_errors_are_torchvisions(
    files: list[str], options: dict[str, Any], tmp_path: Path
) -> None:
    make_tree(tmp_path / "data", files)

    def outcome(kind: Any) -> Any:
        try:
            return kind(tmp_path / "data", **options).samples
        except FileNotFoundError as error:
            return str(error)

    for _ in range(2):
        assert outcome(ImageFolder) == outcome(torchvision.datasets.ImageFolder)


class OneClass(ImageFolder):
    def find_classes(self, directory: Any) -> tuple[list[str], dict[str, int]]:
        return ["c"], {"c": 0}


def test_a_subclass_may_choose_classes_as_torchvision_allows(root: Path) -> None:
    assert [label for _, label in OneClass(root).samples] == [0, 0]


# --- what is kept ---------------------------------------------------------------------------------


def rename(root: Path) -> None:
    (root / "a" / "x.jpg").rename(root / "a" / "y.jpg")


CHANGES: dict[str, Callable[[Path], Any]] = {
    "a file more": lambda root: (root / "a" / "new.jpg").touch(),
    "a file more below": lambda root: (root / "a" / "b" / "new.jpg").touch(),
    "a file in an empty folder": lambda root: (root / "a" / "empty" / "new.jpg").touch(),
    "a file less": lambda root: (root / "c" / "z.jpg").unlink(),
    "a renamed file": rename,
    "a class more": lambda root: make_tree(root, ["b/x.jpg"]),
    "a class renamed": lambda root: (root / "c").rename(root / "d"),
    "a folder more": lambda root: make_tree(root, ["a/d/x.jpg"]),
}


@pytest.mark.parametrize("forged", [False, True], ids=["", "with the old time"])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_seen(change: str, forged: bool, root: Path, listings: list[str]) -> None:
    assert_as_torchvision(root)
    CHANGES[change](root)
    if forged:
        settle(root)
    assert_as_torchvision(root)
    assert len(listings) == 2


def test_a_folder_written_just_now_is_not_trusted(tmp_path: Path, listings: list[str]) -> None:
    make_tree(tmp_path / "data", FILES)
    for _ in range(3):
        assert_as_torchvision(tmp_path / "data")
    assert len(listings) == 3


def test_a_dangling_link_is_looked_at_anew(root: Path, tmp_path: Path, listings: list[str]) -> None:
    (root / "a" / "link.jpg").symlink_to(tmp_path / "later")
    settle(root)
    assert_as_torchvision(root)
    make_tree(tmp_path, ["later/x.jpg"])
    assert len(assert_as_torchvision(root)) == 5


def spoil_middle(content: bytes) -> bytes:
    return content[:60] + bytes([content[60] ^ 1]) + content[61:]


@pytest.mark.parametrize(
    "spoil",
    [spoil_middle, lambda content: content[:-1], lambda content: b"", lambda content: b"x" * 99],
)
def test_a_spoilt_file_is_replaced(
    spoil: Callable[[bytes], bytes], root: Path, cache: Path, listings: list[str]
) -> None:
    assert_as_torchvision(root)
    (kept,) = (file for file in cache.glob("listing-*") if file.suffix != ".lock")
    kept.write_bytes(spoil(kept.read_bytes()))
    assert_as_torchvision(root)
    assert_as_torchvision(root)
    assert len(listings) == 2
    assert len(list(cache.iterdir())) == 2  # the listing and its lock: nothing half written


def test_cache_false_keeps_nothing(root: Path, cache: Path, listings: list[str]) -> None:
    for _ in range(2):
        assert ImageFolder(root, cache=False).samples
    assert len(listings) == 2 and not cache.exists()


@pytest.mark.parametrize("place", ["relative", "/proc/nowhere"])
def test_it_lists_where_nothing_can_be_kept(
    place: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    for _ in range(2):
        assert_as_torchvision(root)


def list_once(root: Path, log: Path, barrier: Any, results: Any) -> None:
    original = listing.list_image_folder

    def logging(path: str, **options: Any) -> Any:
        with open(log, "a") as file:
            file.write("listed\n")
        time.sleep(0.5)  # so that the others must wait
        return original(path, **options)

    listing.list_image_folder = logging
    barrier.wait(60)
    results.put(ImageFolder(root).samples)


def test_processes_that_start_together_list_once(root: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(3), context.Queue()
    log = tmp_path / "log"
    processes = [
        context.Process(target=list_once, args=(root, log, barrier, results), daemon=True)
        for _ in range(3)
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    assert found == [torchvision.datasets.ImageFolder(root).samples] * 3
    assert log.read_text().count("listed") == 1
