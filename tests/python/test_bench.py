"""headrace bench: what it measures, on a small folder."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace import bench_run
from headrace.cli import main
from headrace.verify import Comparison

QUICK = ["--images", "40", "--runs", "2", "--batch-size", "8", "--num-workers", "0,1"]


def test_it_times_every_configuration_and_writes_the_results(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, picture = tmp_path / "results.json", tmp_path / "results.png"
    options = [*QUICK, "--threads", "1,2", "--train", "--json", str(file), "--plot", str(picture)]
    assert main(["bench", str(pictures), *options]) == 0

    results = json.loads(file.read_text())
    found = [(r["system"], r["num_workers"], r["threads"]) for r in results]
    assert found == [
        ("torch", 0, None),
        ("torch", 1, None),
        ("headrace", 1, 1),
        ("headrace", 1, 2),
    ]
    for r in results:
        assert r["images"] == 40
        assert r["images_per_s_min"] <= r["images_per_s"] <= r["images_per_s_max"]
        assert 0 < r["first_batch_s"] < 40 / r["images_per_s_min"]
        assert r["cpu_s_per_1000_images"] > 0
        assert r["peak_memory_mb"] > 10
        assert 0 < r["consumer_wait_share"] < 1
        assert r["step_slowdown"] == pytest.approx(r["step_ms"] / r["step_alone_ms"], rel=1e-3)
        assert r["environment"]["torch"] == torch.__version__
    assert results[0]["stages"] == {} and results[0]["reader"] is None
    assert results[2]["stages"]["decode"]["busy_ms_per_image"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")

    out = capsys.readouterr().out
    assert "torch, 1 worker " in out and "headrace, 2 threads" in out
    best = max(results[0]["images_per_s"], results[1]["images_per_s"])
    assert f"{results[3]['images_per_s'] / best:.2f}" in out


def test_cpu_time_and_memory_of_workers_count(pictures: Path) -> None:
    from torchvision.datasets import ImageFolder

    class Costly(ImageFolder):
        def __getitem__(self, index: int) -> Any:
            ballast = torch.ones(20_000_000)  # 80 MB, in the worker
            for _ in range(5):
                ballast.mul_(1.5)
            return torch.zeros(3, 2, 2), 0

    dataset = torch.utils.data.Subset(Costly(str(pictures)), range(8))
    workload = bench_run.Workload(dataset, 8, 4, cold=False, train=False, classes=3)
    workers = bench_run.Configuration("torch", 1, None)
    run = bench_run.measure(workload, workers)
    assert run.cpu_s > 8 * 0.005
    assert bench_run.peak_memory_mb(workload, workers) > 80


def test_cold_files_leave_the_page_cache(pictures: Path) -> None:
    dropped: list[str] = []
    workload = bench_run.Workload(
        torch.utils.data.Subset(_folder(pictures), range(5)),
        images=12,
        batch_size=4,
        cold=True,
        train=False,
        classes=3,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.bench_run.os.posix_fadvise", lambda file, *_: dropped.append(file))
        run = bench_run.measure(workload, bench_run.Configuration("headrace", 0, 1))
    assert len(dropped) == 5
    assert run.images == 12
    sizes = [Path(path).stat().st_size for path in workload.paths]
    assert run.file_bytes == round(sum(sizes) / 5 * 12)


def _folder(root: Path) -> Any:
    from headrace.folder_arguments import open_folder

    return open_folder(str(root), "v1", "eval")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nowhere"], "does not exist"),
        (["{0}", "--json", "/nowhere/x.json"], "/nowhere/x.json cannot be written"),
        (["{0}", "--plot", "/nowhere/x.png"], "/nowhere/x.png cannot be written"),
        (["{0}", "--plot", "x.jpg"], "x.jpg.png"),
    ],
)
def test_mistakes_end_with_a_remedy(
    pictures: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(bench_run, "measure", lambda *_: pytest.fail("measured"))
    filled = [argument.format(pictures) for argument in arguments]
    assert main(["bench", *filled, *QUICK, "--threads", "1", "--runs", "1"]) == 2
    assert message in capsys.readouterr().err


def test_nothing_is_measured_when_batches_differ(
    pictures: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Comparison, "run", lambda self, epochs: "different: planted")
    monkeypatch.setattr(bench_run, "measure", lambda *_: pytest.fail("measured"))
    assert main(["bench", str(pictures), *QUICK]) == 2
    assert "different: planted" in capsys.readouterr().err
