"""on_error: samples that cannot be loaded are skipped or replaced, alike on every path."""

import json
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, Subset, default_collate
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import headrace
from isolated import Isolator
from lifetime import make_pictures, resident_bytes
from support import (
    assert_same,
    bad_files,
    good_files,
    step,
    train,
    without_addresses,
    write_folder,
)

REFUSED = [
    *("empty.jpg", "garbage.jpg", "half.jpg", "header only.jpg"),
    *("no end.jpg", "tail cut.jpg", "text.jpg", "truncated.png"),
]


class TorchFolder(ImageFolder):
    """Takes torch's path, for being a subclass."""


FOLDERS = {"native": ImageFolder, "torch": TorchFolder}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("mixed"), good_files() | bad_files())


def run(folder: Path, path: str, epochs: int = 2, seed: int = 5, **options: Any) -> Any:
    """Everything that can be seen of some epochs: batches, errors, where the generators stand."""
    torch.manual_seed(seed)
    random.seed(seed)
    options = {"batch_size": 4, "shuffle": True, **options}
    loader = headrace.DataLoader(FOLDERS[path](folder, train()), **options)
    assert loader.explain().path == path
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = [list(loader) for _ in range(epochs)]
    return batches, loader.errors(), torch.get_rng_state(), random.getstate()


@pytest.mark.parametrize("options", [{}, {"rng": "counter"}], ids=["torch", "counter"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_both_paths_do_the_same(
    folder: Path, on_error: str, num_workers: int, options: dict[str, Any]
) -> None:
    options = {"on_error": on_error, "num_workers": num_workers, **options}
    native = run(folder, "native", **options)
    assert_same(native, run(folder, "torch", **options))
    assert_same(native, run(folder, "native", threads=3, **options))
    batches, errors, *_ = native
    sizes = [len(labels) for epoch in batches for _, labels in epoch]
    missing = 2 * 40 - sum(sizes)
    named = {Path(error.path).name for error in errors}
    assert named == set(REFUSED)
    if on_error == "replace":
        assert missing == 0 and max(sizes) == min(sizes) == 4
        assert any(error.replacement is not None for error in errors)
    else:
        assert missing == len(errors) == 2 * len(REFUSED)


def test_only_the_draws_before_the_failure_are_made(folder: Path) -> None:
    """The samples of a skipped epoch are those that a dataset without the bad ones would give,
    where loading fails before anything is drawn."""
    whole = ImageFolder(folder, train())
    bad = {n for n, (path, _) in enumerate(whole.samples) if Path(path).name in REFUSED}
    good = Subset(whole, [n for n in range(len(whole)) if n not in bad])

    def images(dataset: Any, **options: Any) -> torch.Tensor:
        torch.manual_seed(3)
        loader = headrace.DataLoader(dataset, batch_size=5, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.cat([images for images, _ in loader])

    assert_same(images(whole, on_error="skip"), images(good))


def test_a_batch_of_which_nothing_is_left_is_left_out(folder: Path) -> None:
    for path in FOLDERS:
        for num_workers in (0, 2):
            batches, errors, *_ = run(
                folder, path, 1, batch_size=1, on_error="skip", num_workers=num_workers
            )
            assert len(batches[0]) == 40 - len(REFUSED)
            assert len(errors) == len(REFUSED)
            batches, errors, *_ = run(
                folder, path, 1, batch_size=1, on_error="replace", num_workers=num_workers, seed=7
            )
            assert len(batches[0]) == 40


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("path", FOLDERS)
def test_ranks_that_would_wait_for_a_batch_hear_that_it_is_left_out(
    folder: Path, path: str, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step less than the others' would keep them waiting for ever."""
    whole = FOLDERS[path](folder, train())
    places = {Path(file).name: place for place, (file, _) in enumerate(whole.samples)}
    order = [places[name] for name in ("00.jpg", "half.jpg", "text.jpg", "empty.jpg", "01.jpg")]
    loader = headrace.DataLoader(whole, 2, sampler=order, on_error="skip", num_workers=num_workers)
    iterator, alone = iter(loader), iter(loader)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    with pytest.warns(UserWarning, match="skipped"):
        assert len(next(iterator)[1]) == 1
    with pytest.raises(headrace.Error, match=r'text\.jpg.*others of 3.*on_error="replace"'):
        next(iterator)
    assert len(next(iterator)[1]) == 1  # who needs no equal steps can go on
    assert next(iterator, None) is None and loader.error_count == 3

    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    assert len(list(alone)) == 2


def test_a_replacement_comes_from_the_samplers_own_samples(folder: Path) -> None:
    """A sampler may keep part of the dataset apart, for validation say."""
    whole = ImageFolder(folder, train())
    places = {Path(path).name: place for place, (path, _) in enumerate(whole.samples)}
    mine = [places[name] for name in ["00.jpg", "half.jpg", "01.jpg", "text.jpg"]]
    loader = headrace.DataLoader(whole, 4, sampler=mine, on_error="replace")
    with pytest.warns(UserWarning, match="replaced"):
        list(loader)
    assert {error.replacement for error in loader.errors()} <= {mine[0], mine[2], None}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("path", FOLDERS)
def test_without_a_replacement_the_batch_raises(folder: Path, path: str, num_workers: int) -> None:
    whole = FOLDERS[path](folder, train())
    places = {Path(file).name: place for place, (file, _) in enumerate(whole.samples)}
    order = [places["half.jpg"], places["00.jpg"]]
    loader = headrace.DataLoader(
        whole, 1, sampler=order, on_error="replace", num_workers=num_workers
    )
    iterator = iter(loader)
    with (
        pytest.warns(UserWarning, match="replaced"),
        pytest.raises(headrace.Error, match=r"half\.jpg.*none that can be loaded"),
    ):
        next(iterator)
    assert len(next(iterator)[1]) == 1
    assert [(error.index, error.replacement) for error in loader.errors()] == [(order[0], None)]


mixing = v2.CutMix(num_classes=2)  # of three


def mixed(batch: Any) -> Any:
    return mixing(*default_collate(batch))


def refusing(batch: Any) -> Any:
    if any(label == 2 for _, label in batch):
        raise LookupError("there is a 2")
    return default_collate(batch)


@pytest.mark.parametrize("options", [{}, {"rng": "counter"}], ids=["torch", "counter"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("path", FOLDERS)
def test_a_batch_that_is_not_collated_has_its_events_all_the_same(
    folder: Path, path: str, num_workers: int, options: dict[str, Any]
) -> None:
    """They are listed when its exception has its turn, and those behind it after it."""
    native = path == "native" and not options
    torch.manual_seed(5)
    loader = headrace.DataLoader(
        FOLDERS[path](folder, train()),
        6,
        shuffle=True,
        on_error="replace",
        num_workers=num_workers,
        collate_fn=mixed if native else refusing,
        **options,
    )
    assert loader.explain().native == native
    iterator, batches, raised = iter(loader), 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while True:
            try:
                next(iterator)
                batches += 1
            except StopIteration:
                break
            except (LookupError, RuntimeError) as error:
                raised.append(error)
    assert batches + len(raised) == 7 and raised
    in_worker = ["worker process" in str(error) for error in raised]
    assert in_worker == [num_workers > 0] * len(raised)
    assert {Path(error.path).name for error in loader.errors()} == set(REFUSED)


@pytest.mark.parametrize("path", FOLDERS)
def test_there_is_one_warning_and_a_limit(folder: Path, path: str) -> None:
    loader = headrace.DataLoader(
        FOLDERS[path](folder, train()), 4, on_error="skip", max_errors=3, num_workers=1
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(headrace.Error, match="more than max_errors=3"):
            list(loader)
    said = [str(each.message) for each in caught if "cannot be loaded" in str(each.message)]
    assert len(said) == 1 and "loader.errors()" in said[0]
    assert loader.error_count == len(loader.errors()) == 4


@pytest.mark.parametrize("path", FOLDERS)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_beyond_the_limit_every_batch_raises(folder: Path, path: str, num_workers: int) -> None:
    """Those too of which all samples could be loaded."""
    whole = FOLDERS[path](folder, train())
    places = {Path(file).name: place for place, (file, _) in enumerate(whole.samples)}
    order = [places[name] for name in ["00.jpg", "half.jpg", "01.jpg", "02.jpg"]]
    loader = headrace.DataLoader(
        whole, 1, sampler=order, on_error="skip", max_errors=0, num_workers=num_workers
    )
    iterator = iter(loader)
    assert len(next(iterator)[1]) == 1
    with pytest.warns(UserWarning, match="skipped"), pytest.raises(headrace.Error):
        next(iterator)
    for _ in range(2):
        with pytest.raises(headrace.Error, match="more than max_errors=0"):
            next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.parametrize("path", FOLDERS)
def test_the_limit_counts_what_was_before_a_checkpoint(folder: Path, path: str) -> None:
    def make() -> headrace.DataLoader[Any]:
        dataset = FOLDERS[path](folder, train())
        return headrace.DataLoader(dataset, 1, on_error="skip", max_errors=0)

    loader = make()
    with pytest.warns(UserWarning, match="skipped"), pytest.raises(headrace.Error):
        list(loader)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(headrace.Error, match="1 samples could not be loaded, more than max_err"):
        next(iter(resumed))


@pytest.mark.parametrize("path", FOLDERS)
def test_empty_batches_leave_the_callers_generator_alone(folder: Path, path: str) -> None:
    """rng="counter" seeds it for each sample, and the next batch is drawn from it."""

    class Drawing:
        def __iter__(self) -> Any:
            for _ in range(4):
                drawn.append(torch.rand(1).item())
                yield bad
            yield 0

    drawn: list[float] = []
    whole = FOLDERS[path](folder, train())
    bad = [Path(file).name for file, _ in whole.samples].index("half.jpg")
    loader = headrace.DataLoader(whole, 1, sampler=Drawing(), on_error="skip", rng="counter")
    torch.manual_seed(8)
    with pytest.warns(UserWarning, match="skipped"):
        assert len(list(loader)) == 1
    torch.manual_seed(8)
    torch.empty((), dtype=torch.int64).random_()  # base_seed
    assert drawn == [torch.rand(1).item() for _ in range(4)]


# --- the corpus's strange files, as they lie there ------------------------------------------------

# Newer libjpeg-turbo decodes lossless JPEG.
DECODED_SINCE = {"jpeg/lossless/TwelveMonkeys--testimg_rgb.jpg"}


def everything(path: str) -> bool:
    return not path.endswith("expected.jsonl")


def strange_folder(corpus: Path, path: str) -> Any:
    """All files, whatever their names; without draws, so that each sample stands for itself."""
    transform = v1.Compose([v1.Resize((9, 7)), v1.ToTensor()])
    kind = headrace.ImageFolder if path == "native" else TorchFolder
    return kind(str(corpus / "weird"), transform, is_valid_file=everything)


@pytest.fixture(scope="module")
def verdicts(corpus: Path) -> dict[int, Any]:
    """By index: torchvision's sample, or the exception that it raises."""
    reference = strange_folder(corpus, "torch")
    found: dict[int, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for index in range(len(reference)):
            try:
                found[index] = reference[index]
            except Exception as error:
                found[index] = error
    return found


def is_bad(verdict: Any) -> bool:
    return isinstance(verdict, Exception)


def cause(error: Exception) -> str:
    return without_addresses(f"{type(error).__name__}: {error}")


def test_torchvisions_verdicts_are_those_that_came_with_the_corpus(
    corpus: Path, verdicts: dict[int, Any]
) -> None:
    told = {
        record["path"]: record["ok"]
        for record in map(json.loads, (corpus / "weird" / "expected.jsonl").open())
    }
    samples = strange_folder(corpus, "torch").samples
    found = {
        str(Path(file).relative_to(corpus / "weird")): not is_bad(verdicts[index])
        for index, (file, _) in enumerate(samples)
    }
    assert found.keys() == told.keys()
    assert {name for name in told if told[name] != found[name]} <= DECODED_SINCE
    assert 30 < sum(map(is_bad, verdicts.values())) < 60


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("path", FOLDERS)
@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
@pytest.mark.filterwarnings("ignore")
def test_the_corpus_has_pillows_verdict_file_by_file(
    corpus: Path, verdicts: dict[int, Any], on_error: str, path: str, num_workers: int
) -> None:
    """Each sample in a batch of its own."""
    loader = headrace.DataLoader(
        strange_folder(corpus, path), on_error=on_error, num_workers=num_workers
    )
    assert loader.explain().path == path
    iterator, found = iter(loader), []
    while (event := step(iterator)) != "the end":
        found.append(event)
    bad = {index for index, verdict in verdicts.items() if is_bad(verdict)}
    for index, event in zip(
        [index for index in verdicts if on_error != "skip" or index not in bad], found, strict=True
    ):
        if index not in bad:
            image, label = verdicts[index]
            assert_same(event, [image[None], torch.tensor([label])], f"sample {index}")
        elif on_error == "raise":
            assert event.type is type(verdicts[index])
        else:  # an error of ours where nothing before it could replace it
            assert isinstance(event, list) or event.type is headrace.Error
    known = {} if on_error == "raise" else {index: cause(verdicts[index]) for index in bad}
    assert {each.index: without_addresses(each.cause) for each in loader.errors()} == known


def fail_a_thousand_times(folder: str, path: str) -> None:
    names = sorted(Path(folder).rglob("*.jpg"))
    good = names[::5]
    for file in set(names) - set(good):
        file.write_bytes(b"no picture")
    loader = headrace.DataLoader(FOLDERS[path](folder, train()), 10, on_error="skip")
    warnings.simplefilter("ignore")

    def fail(times: int) -> None:
        wanted = loader.error_count + times
        while loader.error_count < wanted:
            assert sum(len(labels) for _, labels in loader) == len(good)

    fail(1000)  # the list of events is full
    before = resident_bytes()
    fail(1000)
    grown = resident_bytes() - before
    assert grown < 512 << 10, f"{grown >> 10} KiB more"
    assert len(loader.errors()) == 1000


@pytest.mark.parametrize("path", FOLDERS)
def test_memory_is_flat_over_a_thousand_failures(
    isolated: Isolator, tmp_path: Path, path: str
) -> None:
    isolated(fail_a_thousand_times, make_pictures(tmp_path, count=250), path)


def fail_at_the_corpus(corpus: str, bad: list[int], good: list[int], on_error: str) -> None:
    """Damage of every kind, a third of 1,000 times a round."""
    warnings.simplefilter("ignore")
    folder = strange_folder(Path(corpus), "native")
    loader = headrace.DataLoader(Subset(folder, [*good * 6, *bad]), on_error=on_error)
    assert loader.explain().path == "native"
    growths = []
    for _ in range(3):
        before = resident_bytes()
        for _ in range(334 // len(bad) + 1):
            iterator = iter(loader)
            while step(iterator) != "the end":
                pass
        growths.append(resident_bytes() - before)
    # A leak shows in every round, the memory of a large picture in one or the other.
    assert min(growths[1:]) < 256 << 10, [f"{growth >> 10} KiB" for growth in growths]


# 150 million, which take their time.
CLAIM_MANY_PIXELS = {"pillow--l2rgb_read.bmp", "libgd--php_bug_75571.gif"}


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_memory_is_flat_over_a_thousand_damaged_files(
    isolated: Isolator, corpus: Path, verdicts: dict[int, Any], on_error: str
) -> None:
    files = {
        index: Path(file) for index, (file, _) in enumerate(strange_folder(corpus, "torch").samples)
    }
    bad = [i for i in files if is_bad(verdicts[i]) and files[i].name not in CLAIM_MANY_PIXELS]
    good = sorted(files.keys() - set(bad), key=lambda index: files[index].stat().st_size)
    small = [index for index in good if not is_bad(verdicts[index])][:10]
    isolated(fail_at_the_corpus, corpus, bad, small, on_error)


@pytest.mark.parametrize(
    "make",
    [
        lambda data: headrace.DataLoader(data, on_error="ignore"),
        lambda data: headrace.DataLoader(data, max_errors=-1),
        lambda data: headrace.DataLoader(data, rng="philox"),
        lambda data: headrace.DataLoader(data, seed=3),
        lambda data: headrace.DataLoader(Stream(), on_error="skip"),
        lambda data: headrace.DataLoader(Stream(), rng="counter"),
    ],
)
def test_bad_arguments_are_refused(make: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match=r"on_error|max_errors|rng|seed"):
        make([1, 2])


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter([1])
