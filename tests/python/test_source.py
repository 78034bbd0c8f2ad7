"""The C++ ImageFolderSource lists what torchvision.datasets.ImageFolder lists, in its order."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

from headrace._core import Error, ImageFolderSource


def make_tree(root: Path, files: list[str]) -> None:
    """Makes empty files; a name with a slash at its end makes a folder."""
    for name in files:
        path = os.path.join(root, name)
        os.makedirs(path if name.endswith("/") else os.path.dirname(path), exist_ok=True)
        if not name.endswith("/"):
            open(path, "w").close()


def assert_same(root: str | Path) -> ImageFolder:
    expected = ImageFolder(root)
    source = ImageFolderSource(root)
    assert source.classes == expected.classes
    assert [source.sample(i) for i in range(len(source))] == expected.samples
    return expected


TREES = {
    "flat": ["cat/1.jpg", "cat/2.png", "dog/1.jpg"],
    "numbers sort as text": ["10/10.jpg", "10/9.jpg", "9/1.jpg", "1/100.jpg", "1/11.jpg"],
    "capitals first": ["a/b.jpg", "a/B.jpg", "B/a.jpg", "_/a.jpg", "~/a.jpg", "-/a.jpg"],
    "every extension": [f"a/x{extension}" for extension in IMG_EXTENSIONS],
    "upper case extensions": ["a/x.JPG", "a/y.JpEg", "a/z.TIFF", "a/w.WebP"],
    "other files": ["a/x.jpg", "a/x.txt", "a/jpg", "a/x.jpg~", "a/x.jpg.gz", "a/x.gif", "a/x"],
    "letters that lower to ASCII": ["a/x.jpg", "a/x.t\u0130f", "a/x.\u212apg", "a/x.jp\u0261"],
    "hidden": ["a/.jpg", "a/.x.jpg", ".b/x.jpg", "a/.c/x.jpg", "a/..jpg"],
    "files beside the class folders": ["x.jpg", "readme.txt", "a/x.jpg"],
    "folders named like images": ["a.jpg/x.jpg", "b/c.jpg/d.png", "b/x.png"],
    "folders that sort around their separator": [
        *("a/x.jpg", "a b/x.jpg", "a.d/x.jpg", "a0/x.jpg"),
        *("c/a/x.jpg", "c/a b/x.jpg", "c/a/b/x.jpg", "c/a.d/x.jpg", "c/a0/x.jpg", "c/a-/x.jpg"),
        *("c/a/x y.jpg", "c/a/x/y.jpg", "c/a/x.jpg", "c/x.jpg"),
    ],
    "nested and empty folders": ["a/b/c/d/e.jpg", "a/b/x/", "a/z.jpg", "a/b/c.jpg"],
    "unicode": [
        *("\u00e9/x.jpg", "e\u0301/x.jpg", "z/x.jpg", "\U0001f600/x.jpg", "\uff21/x.jpg"),
        *("z/\ue000.jpg", "z/\U0001f600.jpg", "z/\u65e5\u672c.jpg", "z/\u00df.jpg", "z/\ufeff.jpg"),
    ],
    "names that are no UTF-8": [
        *(
            "\udcff/x.jpg",
            "\ue000/x.jpg",
            "\ud7ff/x.jpg",
            "\U00010000/x.jpg",
            "\udce9t\udce9/x.jpg",
        ),
        # Parts of longer sequences, an encoded surrogate, overlong and too large ones.
        *("z/\udce2\udc82.jpg", "z/\u20ac.jpg", "z/\udced\udca0\udc80.jpg", "z/\udcc0\udc80.jpg"),
        *("z/\udcf4\udc90\udc80\udc80.jpg", "z/\udcf0\udc9f\udc98x.jpg", "z/\udc80.jpg"),
        *("z/\udce0\udc80\udc80.jpg", "z/\udcf5\udc80\udc80\udc80.jpg", "z/\U0010ffff.jpg"),
    ],
}


@pytest.mark.parametrize("files", TREES.values(), ids=TREES.keys())
def test_lists_as_torchvision(files: list[str], tmp_path: Path) -> None:
    make_tree(tmp_path, files)
    assert_same(str(tmp_path))


def test_order_is_not_that_of_bytes(tmp_path: Path) -> None:
    make_tree(tmp_path, TREES["names that are no UTF-8"])
    paths = [path for path, _ in assert_same(tmp_path).samples]
    assert paths != sorted(paths, key=os.fsencode), "this tree is here to tell the two apart"


# Each of them is a case of its own for sorting or for UTF-8.
TRICKY = [
    *(b"a", b"A", b" ", b".", b"0", b"\x80", b"\xa0", b"\xc3", b"\xe2", b"\xed", b"\xee", b"\xf0"),
    *(b"\xf4", b"\xff", "\u00e9".encode(), "\u20ac".encode(), "\ud7ff".encode()),
    *("\ue000".encode(), "\U00010000".encode()),
]
NAMES = st.lists(st.sampled_from(TRICKY), min_size=1, max_size=4).map(b"".join)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=3), NAMES), min_size=1, max_size=12))
def test_lists_any_tree_as_torchvision(
    tmp_path_factory: pytest.TempPathFactory, files: list[tuple[list[bytes], bytes]]
) -> None:
    root = os.fsencode(tmp_path_factory.mktemp("tree"))
    for folders, name in files:
        if any(folder in (b".", b"..") for folder in folders):
            continue
        folder = os.path.join(root, *folders)
        os.makedirs(folder, exist_ok=True)
        open(os.path.join(folder, name + b".jpg"), "w").close()
    if os.listdir(root):
        assert_same(os.fsdecode(root))


def test_follows_links(tmp_path: Path) -> None:
    make_tree(tmp_path, ["outside/far/x.jpg", "outside/y.jpg", "root/a/x.jpg", "root/b/x.jpg"])
    root = tmp_path / "root"
    (root / "linked class").symlink_to(tmp_path / "outside")
    (root / "a" / "linked folder").symlink_to(tmp_path / "outside" / "far")
    (root / "a" / "linked file.jpg").symlink_to(tmp_path / "outside" / "y.jpg")
    (root / "a" / "named otherwise.txt").symlink_to(tmp_path / "outside" / "y.jpg")
    (root / "a" / "dangling.jpg").symlink_to(tmp_path / "nowhere")
    (root / "dangling class").symlink_to(tmp_path / "nowhere")
    (root / "linked file").symlink_to(tmp_path / "outside" / "y.jpg")
    assert "linked class" in assert_same(root).classes


def test_follows_circles_of_links_to_their_end(tmp_path: Path) -> None:
    make_tree(tmp_path, ["a/x.jpg"])
    (tmp_path / "a" / "here.jpg").symlink_to(".")
    assert len(assert_same(tmp_path)) > 20


def test_lists_what_is_no_regular_file(tmp_path: Path) -> None:
    make_tree(tmp_path, ["a/x.jpg"])
    os.mkfifo(tmp_path / "a" / "fifo.jpg")
    assert len(assert_same(tmp_path)) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_leaves_out_unreadable_folders(tmp_path: Path) -> None:
    make_tree(tmp_path, ["a/x.jpg", "a/b/x.jpg"])
    (tmp_path / "a" / "b").chmod(0)
    try:
        assert len(assert_same(tmp_path)) == 1
    finally:
        (tmp_path / "a" / "b").chmod(0o755)


@pytest.mark.parametrize("root", ["data", "data/", "data//", "./data", "data/../data"])
def test_spells_paths_as_torchvision(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tree(tmp_path, ["data/a/x.jpg", "data/a/b/x.jpg"])
    monkeypatch.chdir(tmp_path)
    assert_same(root)


def test_takes_bytes_as_a_path(tmp_path: Path) -> None:
    make_tree(tmp_path, ["a/x.jpg"])
    assert ImageFolderSource(os.fsencode(tmp_path)).sample(0) == (str(tmp_path / "a/x.jpg"), 0)


@pytest.mark.parametrize(
    ("files", "root", "message"),
    [
        ([], "nowhere", "No such file or directory"),
        (["file"], "file", "Not a directory"),
        (["root/x.jpg"], "root", "no folders in it"),
        (["root/a/x.jpg", "root/b/x.txt", "root/c/"], "root", "no images for the classes b, c:"),
    ],
)
def test_refuses_what_torchvision_refuses(
    files: list[str], root: str, message: str, tmp_path: Path
) -> None:
    make_tree(tmp_path, files)
    path = str(tmp_path / root)
    with pytest.raises(OSError):
        ImageFolder(path)
    with pytest.raises(Error, match=message) as caught:
        ImageFolderSource(path)
    assert (caught.value.code, caught.value.stage, caught.value.path) == (
        "not_found",
        "source",
        path,
    )
    assert caught.value.sample_index is None


def test_refuses_a_class_that_cannot_be_followed(tmp_path: Path) -> None:
    make_tree(tmp_path, ["a/x.jpg"])
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError):
        ImageFolder(tmp_path)
    with pytest.raises(Error, match="symbolic links"):
        ImageFolderSource(tmp_path)


@pytest.mark.parametrize("index", [-1, 1])
def test_refuses_an_index_outside(index: int, tmp_path: Path) -> None:
    make_tree(tmp_path, ["a/x.jpg"])
    with pytest.raises(Error, match="there are 1 of them") as caught:
        ImageFolderSource(tmp_path).sample(index)
    assert caught.value.code == "invalid_argument"


@pytest.mark.parametrize("folder", ["photos", "camera", "."])
def test_lists_the_corpus_as_torchvision(folder: str, corpus: Path) -> None:
    assert len(assert_same(corpus / folder)) > 0
