"""Real processes under torchrun: ranks that are killed, and epochs that go on at other numbers."""

import collections
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ranks_training
from ranks_training import BATCH_SIZE, EPOCH, REMAINDERS
from support import jpeg, write_folder

SIZE = 53
Line = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each picture has a class of its own, so that a label is the sample's index."""
    files = {f"{n:02}.jpg": jpeg((30 + n % 17, 24 + n % 11), n) for n in range(SIZE)}
    return write_folder(tmp_path_factory.mktemp("ranks"), files, classes=SIZE)


@dataclass
class Run:
    """What a run under torchrun left behind.

    Attributes:
        status: torchrun's own exit status.
        text: what it and its ranks printed.
        ranks: of each rank the lines that it wrote.
    """

    status: int
    text: str
    ranks: list[list[Line]]


def torchrun(ranks: int, mode: str, folder: Path, output: Path, *arguments: Any) -> Run:
    output.mkdir()
    script = Path(ranks_training.__file__)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0"]
    command += [f"--nproc-per-node={ranks}", "--local-addr=127.0.0.1", str(script), mode]
    command += [str(each) for each in (folder, output, *arguments)]
    environment = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    try:
        text, _ = process.communicate(timeout=ranks_training.TIMEOUT_S + 20)
    except subprocess.TimeoutExpired:
        process.terminate()  # it ends its ranks, which also have a time limit of their own
        text, _ = process.communicate(timeout=60)
        raise AssertionError(f"torchrun did not end:\n{text}") from None
    finally:
        process.kill()
    logs = [output / f"rank {rank}.jsonl" for rank in range(ranks)]
    lines = [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]
    assert all(lines), f"a rank was given nothing:\n{text}"
    for each in lines:
        assert not Path(f"/proc/{each[0]['pid']}").exists(), f"a rank lives on:\n{text}"
    return Run(process.returncode, text, lines)


@dataclass
class Sample:
    """One sample that a rank was given."""

    id: int
    pixels: str
    counts: bool


def samples(run: Run, remainder: str, steps: int, ranks: int) -> list[Sample]:
    """Those of the first `steps` steps, in the order of the steps, then of the ranks."""
    found = []
    for step in range(steps):
        of_step = [
            line
            for lines in run.ranks
            for line in lines
            if (line["step"], line["remainder"]) == (step, remainder)
        ]
        assert len(of_step) == ranks, "ranks with other numbers of steps"
        assert len({len(line["ids"]) for line in of_step}) == 1, "batches of other sizes"
        assert len({line["done"] for line in of_step}) == 1, "ranks disagree on where they stand"
        for line in of_step:
            found += map(Sample, line["ids"], line["pixels"], line["counts"])
    return found


@pytest.fixture(scope="module")
def parts(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, list[Sample]], dict[str, list[Sample]], dict[str, Any]]:
    """By remainder: the samples before the last save of three ranks and then of two, both with one
    killed in mid-epoch; those of the four that made the epoch full; and the state after that."""
    root = tmp_path_factory.mktemp("runs")
    before: dict[str, list[Sample]] = {name: [] for name in REMAINDERS}
    resume: tuple[Any, ...] = ()
    for ranks, killed, steps in ((3, 1, 3), (2, 0, 3)):
        output = root / f"{ranks} ranks"
        run = torchrun(ranks, "sharded", folder, output, *resume, "--kill", killed, steps)
        assert run.status == 1 and "SIGKILL" in run.text, run.text
        saved = json.loads((output / "state.json").read_text())
        # The killed rank had been given a step more than was saved, which is to come again.
        assert (saved["steps"], run.ranks[killed][-1]["step"]) == (steps, steps)
        for name in REMAINDERS:
            before[name] += samples(run, name, steps, ranks)
        resume = "--resume", output / "state.json"
    run = torchrun(4, "sharded", folder, root / "4 ranks", *resume)
    assert run.status == 0, run.text
    steps = run.ranks[0][-1]["step"] + 1
    assert all(len(lines) == steps * len(REMAINDERS) for lines in run.ranks)
    states = json.loads((root / "4 ranks" / "state.json").read_text())["loaders"]
    return before, {name: samples(run, name, steps, 4) for name in REMAINDERS}, states


@pytest.mark.timeout(400)  # of the fixture's three runs, on a machine that is busy
@pytest.mark.parametrize("remainder", REMAINDERS)
def test_a_killed_epoch_goes_on_at_other_numbers_of_ranks(
    folder: Path, parts: Any, remainder: str
) -> None:
    """Three ranks, then two, then four: each sample once, with one process's pixels."""
    reference = ranks_training.sharded_loader(folder, remainder, 0, num_replicas=1)
    reference.set_epoch(EPOCH)
    pixels: dict[int, str] = {}
    for images, labels in reference:
        pixels.update(zip(labels.tolist(), ranks_training.hashes(images), strict=True))
    order = list(pixels)
    assert sorted(order) == list(range(SIZE))

    before, after, last_state = (part[remainder] for part in parts)
    left = SIZE - (3 + 2) * 3 * BATCH_SIZE
    assert left % 4, "four ranks cannot have equally many of what is left"
    expected = {
        "drop": order[: SIZE - left % 4],
        "wrap": order + order[: -left % 4],
        "pad": order + order[: -left % 4],
    }[remainder]
    found = before + after
    assert sorted(sample.id for sample in before) == sorted(order[: SIZE - left])
    assert sorted(sample.id for sample in found) == sorted(expected)
    assert all(sample.pixels == pixels[sample.id] for sample in found)
    counted = collections.Counter(sample.id for sample in found if sample.counts)
    if remainder == "pad":
        assert counted == collections.Counter(order)
    else:
        assert counted == collections.Counter(expected)

    last = ranks_training.sharded_loader(folder, remainder, 0, num_replicas=1)
    last.load_state_dict(last_state)
    assert [index for _, labels in last for index in labels.tolist()] == order[len(expected) :]


@pytest.mark.timeout(200)
@pytest.mark.parametrize("mode", ["distributed", "accelerate"])
def test_a_training_on_two_ranks_is_torchs(folder: Path, tmp_path: Path, mode: str) -> None:
    """The same samples, pixels and losses at each step, with DistributedDataParallel over torch's
    own DistributedSampler and with Accelerate's prepare()."""
    if mode == "accelerate":
        pytest.importorskip("accelerate")
    run = torchrun(2, mode, folder, tmp_path / "2 ranks")
    assert run.status == 0, run.text
    ids: dict[int, list[int]] = {0: [], 1: []}
    counted: dict[int, list[int]] = {0: [], 1: []}
    for lines in run.ranks:
        by_kind: dict[str, list[Line]] = {"torch": [], "headrace": []}
        for line in lines:
            by_kind[line.pop("kind")].append(line)
        assert len(by_kind["torch"]) == 2 * 7  # epochs of 27 samples in batches of 4
        assert by_kind["headrace"] == by_kind["torch"]
        for line in by_kind["headrace"]:
            ids[line["epoch"]] += line["ids"]
            counted[line["epoch"]] += line.get("counted", [])
    assert run.ranks[0][0]["ids"] != run.ranks[1][0]["ids"]
    for epoch in ids.values():
        assert SIZE < len(epoch) <= SIZE + 4 and set(epoch) == set(range(SIZE))
    if mode == "accelerate":  # it fills up the last batch, and leaves that out of metrics again
        for epoch in counted.values():
            assert sorted(epoch) == sorted([*range(SIZE)] * 2)
