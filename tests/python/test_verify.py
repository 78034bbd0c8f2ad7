"""The command line, and `headrace verify`: what it compares, reports and refuses."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder

import headrace
from headrace import verify
from headrace.cli import main
from headrace.main_iterator import MainProcessIterator
from headrace.route import Explanation
from headrace.worker_iterator import WorkerIterator

BATCH = 4


def picture(seed: int) -> Image.Image:
    width, height = 40 + 9 * seed, 70 - 3 * seed
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(0, 256, (height, width, 3), generator=generator, dtype=torch.uint8)
    return Image.fromarray(noise.numpy()).resize((2 * width, 2 * height))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven intact images of several kinds in two classes."""
    root = tmp_path_factory.mktemp("verify") / "images"
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
    for seed in range(4):
        picture(seed).save(root / "cat" / f"{seed}.jpg", quality=80, subsampling=seed % 3)
        picture(seed + 4).save(root / "dog" / f"{seed}.jpg", quality=95, progressive=True)
    picture(8).convert("L").save(root / "cat" / "gray.jpg")
    picture(9).convert("CMYK").save(root / "dog" / "cmyk.jpg")
    picture(10).save(root / "dog" / "other.webp")
    return root


@pytest.fixture(scope="module")
def broken(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with one file cut short and one that is no image."""
    root = tmp_path_factory.mktemp("verify") / "broken"
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for file in (folder / name).iterdir():
            (root / name / file.name).write_bytes(file.read_bytes())
    whole = (folder / "cat" / "1.jpg").read_bytes()
    (root / "cat" / "0cut.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "dog" / "9text.jpg").write_text("no image")
    return root


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs `headrace verify` in this process: exit code, stdout, stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["verify", "--batch-size", str(BATCH), *map(str, arguments)])
        return code, *capfd.readouterr()

    return call


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], Any]], None]:
    """Replaces what headrace's iterators do at each next(); gets their own way as an argument."""

    def replace(next_data: Callable[[Any], Any]) -> None:
        for kind in (WorkerIterator, MainProcessIterator):
            own = kind._next_data
            monkeypatch.setattr(
                kind, "_next_data", lambda self, own=own: next_data(lambda: own(self))
            )

    return replace


def at_batch(number: int, change: Callable[[list[torch.Tensor]], Any]) -> Callable[[Any], Any]:
    """Changes the batch with this number, counted over all epochs."""
    seen = 0

    def next_data(own: Callable[[], list[torch.Tensor]]) -> Any:
        nonlocal seen
        data = own()
        seen += 1
        return change(data) if seen == number + 1 else data

    return next_data


# --- the same -----------------------------------------------------------------------------------

VARIANTS = {
    "workers": ["--num-workers", 2],
    "main process": ["--num-workers", 0],
    "eval": ["--transform", "eval", "--num-workers", 1],
    "v2": ["--api", "v2", "--num-workers", 1],
    "v2 eval": ["--api", "v2", "--transform", "eval", "--num-workers", 0],
    "persistent": ["--persistent", "--num-workers", 2],
    "in order, one thread": ["--no-shuffle", "--threads", 1, "--num-workers", 1],
    "subset": ["--subset", 6, "--num-workers", 1],
    "one of two ranks": ["--world-size", 2, "--rank", 1, "--num-workers", 1],
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_two_epochs_of_intact_and_broken_files_are_identical(run, folder, broken, options):
    for directory in (folder, broken):
        code, out, err = run(directory, "--epochs", 2, *options)
        assert (code, err) == (0, "")
        assert out.startswith("identical: ")


def test_the_summary_counts_what_was_compared(run, folder, broken):
    assert run(folder, "--epochs", 2)[1] == (
        "identical: 6 batches, 22 samples, 2 epochs (2 samples decided by Pillow)\n"
    )
    assert run(folder, "--drop-last", "--subset", "0.5")[1].startswith(
        "identical: 1 batch, 4 samples, 1 epoch ("
    )
    assert run(broken, "--no-shuffle", "--num-workers", 1)[1] == (
        "identical: 2 batches, 2 exceptions, 5 samples, 1 epoch (3 samples decided by Pillow)\n"
        "identical: 6 batches, 2 exceptions, 6 samples, 1 epoch (2 samples decided by Pillow): "
        "the samples of batches with exceptions, one by one\n"
    )


def test_a_difference_in_a_batch_that_raises_is_found(run, broken, spoil):
    """Beside an exception nothing of the other samples shows; alone they do."""

    def spoilt(next_data: Callable[[Any], Any]) -> Any:
        images, labels = next_data()
        return [images + 1 if len(labels) == 1 else images, labels]

    assert len(ImageFolder(broken)) % 12 == 1
    spoil(spoilt)
    code, out, _ = run(
        broken, "--no-shuffle", "--num-workers", 0, "--batch-size", 12, "--drop-last"
    )
    assert code == 1
    assert "epoch 0, batch 0, row 0 (dataset index 0," in out


@pytest.mark.parametrize("options", [(), ("--all-files", "--num-workers", 0)])
def test_the_strange_corpus_is_identical_and_what_was_left_out_is_said(run, corpus, options):
    strange = corpus / "weird"
    files = [path for path in strange.rglob("*") if path.is_file() and path.parent != strange]
    taken = ImageFolder(strange, allow_empty=True)
    count = len(files) if options else len(taken)
    code, out, err = run(strange, "--batch-size", 1, *options)
    assert code == 0
    batches, exceptions = map(int, re.findall(r"(\d+) (?:batches|exceptions)", out))
    assert batches + exceptions == count
    assert ("left out: 1 files" if options else "left out: 11 files") in err
    assert ("--all-files takes such files too" in err) == (not options)


@pytest.mark.parametrize("workers", [0, 2])
def test_photographs_are_identical(run, corpus, workers):
    code, out, _ = run(corpus / "photos", "--subset", 40, "--num-workers", workers)
    assert code == 0
    assert out.startswith("identical: 10 batches, 40 samples, 1 epoch (")


def test_the_callers_random_state_is_left_alone(run, folder):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    run(folder, "--num-workers", 0)
    assert torch.equal(torch.get_rng_state(), before)


# --- different ----------------------------------------------------------------------------------


def expected_index(folder: Path, seed: int, batch: int, row: int, epoch: int = 0) -> int:
    """By torch alone: what stands at this place in this epoch of fresh iterators."""
    torch.manual_seed(seed)
    numbers = range(len(ImageFolder(folder)))
    loader = torch.utils.data.DataLoader(numbers, BATCH, shuffle=True, num_workers=1)
    for _ in range(epoch):
        list(loader)
    return int(list(loader)[batch][row])


@pytest.mark.parametrize("epoch", [0, 1])
def test_one_altered_pixel_is_found_and_named(run, spoil, folder, epoch):
    def alter(data: list[torch.Tensor]) -> list[torch.Tensor]:
        data[0][3, 2, 5, 7] = 1000
        data[0][2, 1, 10, 20:22] = -0.5
        return data

    spoil(at_batch(1 + 3 * epoch, alter))
    code, out, _ = run(folder, "--epochs", 2, "--seed", 3)
    index = expected_index(folder, 3, batch=1, row=2, epoch=epoch)
    path = ImageFolder(folder).samples[index][0]
    assert code == 1
    assert f"different: epoch {epoch}, batch 1, row 2 (dataset index {index}, {path})" in out
    assert "pixel (channel 1, y 10, x 20): torch " in out
    assert "headrace -0.5 (bits 0xbf000000)" in out
    assert "2 of 150528 values of this sample and 2 of 4 samples" in out


def test_a_subset_is_named_by_the_folders_own_index(run, spoil, folder):
    def alter(data: list[torch.Tensor]) -> list[torch.Tensor]:
        data[0][1] += 1
        return data

    spoil(at_batch(0, alter))
    _, out, _ = run(folder, "--subset", "5", "--no-shuffle")
    index = int(torch.randperm(11, generator=torch.Generator().manual_seed(0))[1])
    assert f"row 1 (dataset index {index}, {ImageFolder(folder).samples[index][0]})" in out


def test_the_second_epoch_of_persistent_workers_is_named_rightly(run, spoil, folder):
    def alter(data: list[torch.Tensor]) -> list[torch.Tensor]:
        data[1][0] = 77
        return data

    spoil(at_batch(3, alter))
    _, out, _ = run(folder, "--epochs", 2, "--persistent")
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(
        range(11), BATCH, shuffle=True, num_workers=2, persistent_workers=True
    )
    list(loader)
    index = int(next(iter(loader))[0])
    label = ImageFolder(folder).samples[index][1]
    assert f"different: epoch 1, batch 0, row 0 (dataset index {index}, " in out
    assert f"label: torch {label}, headrace 77" in out


def test_swapped_labels_are_found(run, spoil, folder):
    spoil(at_batch(1, lambda data: [data[0], data[1].flip(0)]))
    code, out, _ = run(folder, "--no-shuffle")
    assert code == 1
    assert "epoch 0, batch 1, row 0 (dataset index 4, " in out
    assert "label: torch 0, headrace 1" in out


def test_the_sign_of_zero_is_a_difference():
    images, labels = torch.zeros(1, 3, 2, 2), torch.zeros(1, dtype=torch.int64)
    found = verify.compare_batches([images, labels], [-images, labels])
    assert found is not None
    assert "torch 0.0 (bits 0x00000000), headrace -0.0 (bits 0x80000000)" in found.what
    nan = images / 0
    assert verify.compare_batches([nan, labels], [nan.clone(), labels]) is None


STRUCTURES = {
    "tuple": lambda data: tuple(data),
    "float64": lambda data: [data[0].double(), data[1]],
    "int32": lambda data: [data[0], data[1].int()],
    "[3, 3, 224, 224]": lambda data: [data[0][:3], data[1][:3]],
    "strides": lambda data: [data[0].to(memory_format=torch.channels_last), data[1]],
    "ndarray": lambda data: [data[0].numpy(), data[1]],
}


@pytest.mark.parametrize("sign", STRUCTURES)
def test_another_type_or_shape_is_found(run, spoil, folder, sign):
    spoil(at_batch(0, STRUCTURES[sign]))
    code, out, _ = run(folder)
    assert code == 1
    assert out.startswith("different: epoch 0, batch 0\n")
    assert sign in out


def test_a_dropped_batch_is_found(run, spoil, folder):
    seen = 0

    def skip_the_third(own: Callable[[], Any]) -> Any:
        nonlocal seen
        seen += 1
        if seen == 3:
            own()
        return own()

    spoil(skip_the_third)
    code, out, _ = run(folder)
    assert code == 1
    assert out.startswith("different: epoch 0, batch 2\n")
    assert "torch gives a batch\n  headrace ends the epoch" in out


def test_a_batch_too_many_is_found(run, spoil, folder):
    last: list[Any] = []

    def repeat_the_last(own: Callable[[], Any]) -> Any:
        try:
            last[:] = [own()]
        except StopIteration:
            if not last:
                raise
            return last.pop()
        return last[0]

    spoil(repeat_the_last)
    code, out, _ = run(folder)
    assert code == 1
    assert out.startswith("different: epoch 0, batch 3\n")
    assert "torch ends the epoch\n  headrace gives a batch" in out


@pytest.mark.parametrize("workers", [0, 2])
def test_a_swallowed_exception_is_found_and_its_file_named(run, spoil, broken, workers):
    def swallow(own: Callable[[], Any]) -> Any:
        try:
            return own()
        except OSError:
            return own()

    spoil(swallow)
    code, out, _ = run(broken, "--no-shuffle", "--num-workers", workers)
    assert code == 1
    file = broken / "cat" / "0cut.jpg"
    assert f"different: epoch 0, batch 0, row 1 (dataset index 1, {file})" in out
    assert "image file is truncated" in out
    assert "headrace gives a batch" in out


@pytest.mark.parametrize("workers", [0, 2])
def test_another_message_or_type_is_found(run, spoil, broken, workers):
    for kind in (OSError, ValueError):

        def disguise(own: Callable[[], Any], kind: type[Exception] = kind) -> Any:
            try:
                return own()
            except OSError as error:
                text = str(error) if kind is ValueError else "something else"
                raise kind(text) from None

        spoil(disguise)
        code, out, _ = run(broken, "--no-shuffle", "--num-workers", workers)
        assert code == 1
        assert "torch raises builtins.OSError: " in out
        assert f"headrace raises builtins.{kind.__name__}: " in out


@pytest.mark.parametrize("workers", [0, 2])
def test_a_generator_left_elsewhere_is_found(run, spoil, folder, workers):
    def draw(data: Any) -> Any:
        torch.rand(1)
        return data

    spoil(at_batch(1, draw))
    code, out, _ = run(folder, "--num-workers", workers)
    assert code == 1
    assert out.startswith("different: epoch 0, batch 1\n")
    assert "default generator stands elsewhere" in out


# --- refused ------------------------------------------------------------------------------------


def test_a_run_on_torchs_path_is_not_called_identical(run, folder):
    torch.set_default_dtype(torch.float64)
    try:
        code, out, err = run(folder)
    finally:
        torch.set_default_dtype(torch.float32)
    assert (code, out) == (2, "")
    assert "not compared: headrace would use torch's own loader" in err
    assert "default dtype torch.float64" in err


def test_an_iterator_of_torchs_is_not_called_identical(run, folder, monkeypatch):
    monkeypatch.setattr(
        headrace.DataLoader, "_get_iterator", torch.utils.data.DataLoader._get_iterator
    )
    code, out, err = run(folder)
    assert (code, out) == (2, "")
    assert "_MultiProcessingDataLoaderIter" in err


def test_batches_that_torch_computed_whole_are_not_called_identical(run, folder, monkeypatch):
    monkeypatch.setattr("headrace.iterator.resolve", lambda dataset, indices: TypeError("planted"))
    code, out, err = run(folder)
    assert (code, out) == (2, "")
    assert "of 11 samples headrace made 0 and asked about 3" in err


def test_a_path_that_changes_on_the_way_is_not_called_identical(run, folder, monkeypatch):
    answers = [verify.decide]

    def only_once(loader: Any) -> Any:
        return answers.pop()(loader) if answers else (Explanation("torch", "why", "planted"), "")

    monkeypatch.setattr(verify, "decide", only_once)
    code, out, err = run(folder)
    assert (code, out) == (2, "")
    assert "torch path, because of planted: why" in err


# --- mistakes -----------------------------------------------------------------------------------


def test_a_directory_that_is_not_fit_is_named_with_the_remedy(run, folder, tmp_path):
    empty = tmp_path / "empty"
    (tmp_path / "bare" / "cat").mkdir(parents=True)
    empty.mkdir()
    for directory, problem in {
        tmp_path / "missing": "does not exist",
        folder / "cat" / "0.jpg": "is not a directory",
        empty: "Couldn't find any class folder",
        folder / "cat": "Couldn't find any class folder",
        tmp_path / "bare": "Found no valid file for the classes cat",
    }.items():
        code, out, err = run(directory)
        assert (code, out) == (2, "")
        assert err.startswith(f"headrace verify: {directory}")
        assert problem in err
        assert f"one folder of images for each class, such as {directory}/cat/1.jpg" in err


def test_options_that_leave_nothing_or_contradict_are_refused(run, folder):
    for options, problem in {
        ("--subset", 12): "--subset 12 means 12 of the 11 samples",
        ("--subset", 0): "Ask for 1 to 11",
        ("--subset", 3, "--drop-last"): "3 samples of .* make no batch",
        ("--persistent", "--num-workers", 0): "torch refuses .* persistent_workers",
        ("--world-size", 2, "--rank", 2): "torch refuses .* [Ii]nvalid rank",
        ("--rank", 1): "--rank 1 needs --world-size",
    }.items():
        code, out, err = run(folder, *options)
        assert (code, out) == (2, "")
        assert str(folder) in err
        assert re.search(problem, err), err


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        ([], "COMMAND"),
        (["wash"], "invalid choice: 'wash'"),
        (["verify"], "DIR"),
        (["verify", "x", "--colour"], "unrecognized arguments: --colour"),
        (["verify", "x", "--epochs", "0"], "0 is not from 1"),
        (["verify", "x", "--num-workers", "few"], "invalid whole number value: 'few'"),
        (["verify", "x", "--subset", "1.5"], "neither a count nor a fraction"),
        (["verify", "x", "--transform", "crop"], "invalid choice: 'crop'"),
    ],
)
def test_bad_arguments_exit_with_2_and_say_which(capsys, argv, problem):
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2
    assert problem in capsys.readouterr().err


def test_an_unexpected_error_is_not_taken_for_a_difference(run, folder, monkeypatch):
    monkeypatch.setattr(verify, "Comparison", lambda *_: 1 / 0)
    code, out, err = run(folder)
    assert (code, out) == (2, "")
    assert "ZeroDivisionError" in err


def test_ctrl_c_ends_with_130(run, folder, spoil):
    def interrupt(own: Callable[[], Any]) -> Any:
        raise KeyboardInterrupt

    spoil(interrupt)
    assert run(folder)[0] == 130


def test_version_is_the_packages(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"headrace {headrace.__version__}\n"


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_module_runs_as_a_command_with_its_exit_code(tmp_path):
    done = python("-m", "headrace", "verify", os.fspath(tmp_path / "missing"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "missing does not exist" in done.stderr


@pytest.mark.parametrize("module", [True, False])
def test_without_torch_the_command_says_how_to_install_it(tmp_path, monkeypatch, module):
    (tmp_path / "torch.py").write_text("raise ImportError('there is none')")
    script = tmp_path / "headrace"
    script.write_text("import sys; from headrace.cli import main; sys.exit(main())")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(headrace.__file__).parents[1]}")
    done = python(*(["-m", "headrace"] if module else [os.fspath(script)]), "verify", ".")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("headrace: headrace needs torch")
    assert "pip install 'torch>=" in line
