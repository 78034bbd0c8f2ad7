"""headrace.profile: traces, sidecars and a verdict from real training loops on the CPU."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from headrace.diagnosis import Run
from headrace.rules import findings_of
from headrace.trace import read_traces
from support import jpeg, write_folder


class Slow(Dataset[torch.Tensor]):
    """Takes its time for each sample."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.full((8,), float(index))


def pictures(folder: Path) -> Path:
    return write_folder(folder, {f"{i:02}.jpg": jpeg((48, 40), i) for i in range(40)})


def profiled(folder: Path, loader: Any, **options: Any) -> headrace.profile:
    layer = torch.nn.Linear(8, 8)
    with headrace.profile(folder, loader=loader, **options) as profiler:
        for batch in loader:
            images = batch[0] if isinstance(batch, list) else batch
            layer(images.flatten(1)[:, :8].float()).sum().backward()
            profiler.step()
    return profiler


def test_a_slow_loader_of_torch_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = torch.utils.data.DataLoader(Slow(), batch_size=4)
    profiler = profiled(tmp_path / "new" / "run", loader, dtype=torch.float32)
    text = capsys.readouterr().out
    assert "the loop waits while the loader is waited for" in text
    assert "loop waiting in the loader" in text and "GPU idle" not in text
    assert [trace.name for trace in profiler.traces] == ["rank0-0.pt.trace.json.gz"]

    (trace,) = read_traces([str(tmp_path / "new")])
    assert len(trace.steps) == 5
    assert trace.rank == 0 and trace.world_size == 1
    expected = {
        "batch_size": 4,
        "dtype": "float32",
        "torch": torch.__version__,
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "profiler": {"record_shapes": False, "profile_memory": True, "with_stack": False},
    }
    assert {name: trace.sidecar[name] for name in expected} == expected
    finding = findings_of(Run([trace]))[0]
    assert (finding.layer, finding.kind, finding.level) == ("data", "loader", "high")
    assert finding.ms_per_step >= 4 * 2  # four samples of 2 ms


@pytest.mark.parametrize("num_workers", [0, 2])
def test_headrace_shows_in_the_profiler_as_a_loader(tmp_path: Path, num_workers: int) -> None:
    dataset = ImageFolder(
        str(pictures(tmp_path / "pictures")),
        transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()]),
    )
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=num_workers, threads=1)
    assert loader.explain().native
    profiled(tmp_path / "run", loader, verdict=False)
    (trace,) = read_traces([str(tmp_path / "run")])
    kind = "WorkerIterator" if num_workers else "MainProcessIterator"
    assert trace.summary["loader_name"] == f"enumerate(DataLoader)#{kind}.__next__"
    assert len(trace.summary["loader_waits_ns"]) >= 5
    assert trace.sidecar["loader"]["batches"] > 0
    assert trace.sidecar["loader_report"]


def test_spans_are_repeated_and_too_few_steps_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profiler = profiled(
        tmp_path / "a", [torch.ones(1, 8)] * 12, wait=1, warmup=1, active=3, repeat=2, verdict=False
    )
    assert len(profiler.traces) == 2
    assert capsys.readouterr().out == ""
    profiled(tmp_path / "b", [torch.ones(1, 8)] * 2)
    assert "the loop made 2 of the 8 steps" in capsys.readouterr().out


def test_an_error_in_the_loop_comes_through(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ZeroDivisionError), headrace.profile(tmp_path) as profiler:
        profiler.step()
        raise ZeroDivisionError
    assert capsys.readouterr().out == ""


def test_ranks_write_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        profiled(tmp_path, [torch.ones(1, 8)] * 9, verdict=False)
    traces = read_traces([str(tmp_path)])
    assert [(trace.rank, trace.world_size) for trace in traces] == [(0, 2), (1, 2)]
    sidecar = json.loads((tmp_path / "rank1-0.headrace.json").read_text())
    assert sidecar["rank"] == 1
