"""What all Python tests share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from isolated import Isolator
from lifetime import make_pictures
from support import bad_files, good_files, write_folder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The corpus of pictures: HEADRACE_CORPUS, or shared/corpus beside the tree."""
    path = Path(os.environ.get("HEADRACE_CORPUS", ROOT.parent / "shared" / "corpus"))
    if not path.is_dir():
        pytest.skip(f"no corpus: {path} is absent; HEADRACE_CORPUS names another place")
    return path


@pytest.fixture(scope="session")
def isolated() -> Iterator[Isolator]:
    """Runs a function in a process of its own."""
    isolator = Isolator()
    yield isolator
    isolator.close()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image folder of small JPEG files of all kinds, each of them decoded natively."""
    return write_folder(tmp_path_factory.mktemp("pictures"), good_files())


@pytest.fixture(scope="session")
def mixed_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, mixed with damaged files and with other formats than JPEG."""
    return write_folder(tmp_path_factory.mktemp("mixed"), good_files() | bad_files())


@pytest.fixture(scope="session")
def numbered_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image folder of 24 tiny files with a class each: labels name the samples."""
    return make_pictures(tmp_path_factory.mktemp("numbered"))


@pytest.fixture(scope="session")
def large_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of 4 pictures that take long to decode, so that next() has to wait."""
    return make_pictures(tmp_path_factory.mktemp("large"), count=4, size=(2500, 2500))


@pytest.fixture(scope="session")
def strange_pictures(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus's odd and broken files as an image folder of one class."""
    files = sorted(path for path in (corpus / "weird").rglob("*") if path.is_file())
    if not files:
        pytest.skip("no strange files in the corpus")
    root = tmp_path_factory.mktemp("strange")
    (root / "class").mkdir()
    for number, file in enumerate(files):
        (root / "class" / f"{number:04}.jpg").symlink_to(file)
    return root


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = [str(report.longrepr[2]) for report in terminalreporter.getreports("skipped")]
    if without_corpus := sum("corpus" in reason for reason in reasons):
        terminalreporter.write_line(
            f"{without_corpus} tests skipped for want of the corpus of pictures", yellow=True
        )
