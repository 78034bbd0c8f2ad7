"""What all Python tests share."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The corpus of pictures: HEADRACE_CORPUS, or shared/corpus beside the tree."""
    path = Path(os.environ.get("HEADRACE_CORPUS", ROOT.parent / "shared" / "corpus"))
    if not path.is_dir():
        pytest.skip(f"no corpus: {path} is absent; HEADRACE_CORPUS names another place")
    return path


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = [str(report.longrepr[2]) for report in terminalreporter.getreports("skipped")]
    if without_corpus := sum("corpus" in reason for reason in reasons):
        terminalreporter.write_line(
            f"{without_corpus} tests skipped for want of the corpus of pictures", yellow=True
        )
