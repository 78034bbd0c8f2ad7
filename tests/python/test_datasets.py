"""Datasets beyond ImageFolder: the same batches as torch's loader gives on the same object."""

import gc
import io
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms as v1
from torchvision.datasets import CIFAR10, CIFAR100, DatasetFolder, ImageFolder
from torchvision.datasets.folder import default_loader

from headrace import DataLoader, ImageDataset
from support import (
    MEAN,
    STD,
    assert_same_behaviour,
    bad_files,
    encoded,
    epochs,
    evaluation,
    good_files,
    jpeg,
    picture,
    step,
    train,
    train_v2,
)

WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


def assert_native(make_dataset: Any, num_workers: int, **options: Any) -> None:
    """Both loaders behave the same on the dataset, ours natively."""

    def build(loader_type: Any) -> Any:
        return loader_type(
            make_dataset(), batch_size=4, shuffle=True, num_workers=num_workers, **options
        )

    assert_same_behaviour(build)


def assert_torch(dataset: Any, culprit: Any) -> None:
    explanation = DataLoader(dataset, batch_size=4).explain()
    assert explanation.path == "torch"
    assert explanation.culprit is culprit or explanation.culprit == culprit


def paths_of(folder: Path) -> list[tuple[str, int]]:
    return [(path, label) for path, label in ImageFolder(folder).samples]


# --- folders and trees of datasets ----------------------------------------------------------------


@WORKERS
def test_dataset_folder_with_any_extensions(mixed_pictures: Path, num_workers: int) -> None:
    extensions = (".jpg", ".webp", ".bmp", ".png")
    assert_native(
        lambda: DatasetFolder(mixed_pictures, default_loader, extensions, train()), num_workers
    )


def nested(pictures: Path) -> Any:
    transform = train()
    one = ImageFolder(pictures, transform)
    two = Subset(ImageFolder(pictures, transform), range(3, 20, 2))
    lists = ImageDataset(paths_of(pictures)[:5], train())
    return Subset(
        ConcatDataset([two, ConcatDataset([lists, Subset(one, [1, 7, -2])]), one]),
        [0, 20, 11, -1, 12, 8, 13, 9, 14, 30, 16, 15, 2, 2],
    )


@WORKERS
def test_trees_of_subsets_and_concatenations(pictures: Path, num_workers: int) -> None:
    assert_native(lambda: nested(pictures), num_workers)


@WORKERS
def test_a_concatenation_with_bad_samples(mixed_pictures: Path, num_workers: int) -> None:
    transform = train()

    def make() -> Any:
        folder = ImageFolder(mixed_pictures, transform)
        return ConcatDataset([folder, ImageDataset(paths_of(mixed_pictures), transform)])

    assert_native(make, num_workers)


@WORKERS
def test_places_outside_a_concatenation_are_torchs_errors(pictures: Path, num_workers: int) -> None:
    def build(loader_type: Any) -> Any:
        dataset = ConcatDataset([ImageFolder(pictures, evaluation())] * 2)
        batches = [[0, 1], [2, 999], [3, -46], [4, -47], [5, 6]]
        return loader_type(dataset, batch_sampler=batches, num_workers=num_workers)

    assert_same_behaviour(build)


def test_parts_with_different_transforms_are_not_native(pictures: Path) -> None:
    parts = [ImageFolder(pictures, train()), ImageFolder(pictures, train_v2())]
    assert_torch(ConcatDataset(parts), parts[1])
    odd = ImageFolder(pictures, train(), target_transform=str)
    assert_torch(ConcatDataset([parts[0], odd]), str)


class OwnConcat(ConcatDataset[Any]):
    pass


def test_a_subclass_of_concat_is_not_native(pictures: Path) -> None:
    dataset = OwnConcat([ImageFolder(pictures, train())])
    assert_torch(dataset, dataset)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_changes_of_a_concatenation_are_seen_as_torch_sees_them(
    pictures: Path, num_workers: int
) -> None:
    def build(loader_type: Any) -> Any:
        parts = [ImageFolder(pictures, evaluation()), ImageFolder(pictures, evaluation())]
        return loader_type(ConcatDataset(parts), batch_size=4, num_workers=num_workers)

    def drive(loader: Any) -> Iterator[Any]:
        iterator = iter(loader)
        yield step(iterator)
        parts = loader.dataset.datasets
        parts[0].samples[8:12] = parts[0].samples[:4]
        yield step(iterator)
        parts[1].samples.reverse()
        parts.reverse()
        for _ in range(12):
            yield step(iterator)

    assert_same_behaviour(build, drive)


# --- lists ----------------------------------------------------------------------------------------


@WORKERS
def test_lists_of_paths_and_bytes(pictures: Path, num_workers: int) -> None:
    samples: list[Any] = [
        (content, number % 3) for number, content in enumerate(good_files().values())
    ]
    samples += [(Path(path), label) for path, label in paths_of(pictures)]
    assert_native(lambda: ImageDataset(samples, train()), num_workers)


@WORKERS
def test_bad_bytes_raise_what_pillow_raises(num_workers: int) -> None:
    files = [*good_files().values(), *bad_files().values()]
    samples = [(content, number) for number, content in enumerate(files)]
    assert_native(lambda: ImageDataset(samples, train()), num_workers)


@WORKERS
def test_odd_content_and_labels_are_torchs_business(num_workers: int) -> None:
    good = jpeg((30, 20), 1)
    samples = [(good, 1), (bytearray(good), 2), (good, 3), (memoryview(good), 4), (good, 5)]
    samples += [(good, True), (good, 6), (good, np.int64(7)), (good, 2**70), (None, 8), (good, 9)]
    if num_workers:
        samples = [sample for sample in samples if type(sample[0]) is not memoryview]
    assert_native(lambda: ImageDataset(samples, evaluation()), num_workers)


@WORKERS
def test_a_list_is_read_as_torch_reads_it(num_workers: int) -> None:
    def build(loader_type: Any) -> Any:
        samples = [(jpeg((30, 20), number), number) for number in range(12)]
        return loader_type(ImageDataset(samples, train()), batch_size=2, num_workers=num_workers)

    def drive(loader: Any) -> Iterator[Any]:
        iterator = iter(loader)
        yield step(iterator)
        loader.dataset.samples.reverse()
        for _ in range(6):
            yield step(iterator)

    assert_same_behaviour(build, drive)


def test_memory_is_let_go_of() -> None:
    content = jpeg((30, 20), 1)
    before = sys.getrefcount(content)
    dataset = ImageDataset([(content, 0)] * 40, evaluation())
    for num_workers in (0, 2):
        list(DataLoader(dataset, batch_size=4, num_workers=num_workers))
        iterator = iter(DataLoader(dataset, batch_size=4, num_workers=num_workers))
        next(iterator)
        del iterator  # with batches in flight
    del dataset
    gc.collect()
    assert sys.getrefcount(content) == before


def test_an_image_dataset_indexes_and_pickles(pictures: Path) -> None:
    samples = paths_of(pictures)
    dataset = ImageDataset(samples, evaluation())
    assert len(dataset) == len(samples)
    image, label = pickle.loads(pickle.dumps(dataset))[3]
    expected = ImageFolder(pictures, evaluation())[3]
    assert label == expected[1] and image.equal(expected[0])
    plain, _ = ImageDataset(samples)[3]
    assert plain.mode == "RGB"


@pytest.mark.parametrize("samples", [{"a": 1}, iter([]), "path", b"bytes", 3])
def test_what_is_no_list_of_samples_is_refused(samples: Any) -> None:
    with pytest.raises(TypeError, match="samples must be a sequence"):
        ImageDataset(samples)


class OwnImageDataset(ImageDataset):
    pass


def test_a_subclass_of_image_dataset_is_not_native(pictures: Path) -> None:
    dataset = OwnImageDataset(paths_of(pictures), train())
    assert_torch(dataset, dataset)


# --- data frames ----------------------------------------------------------------------------------


@WORKERS
def test_data_frames(pictures: Path, num_workers: int) -> None:
    pandas = pytest.importorskip("pandas")
    paths, labels = zip(*paths_of(pictures), strict=True)
    frame = pandas.DataFrame({"file": paths, "label": labels}).iloc[::-1]
    assert_native(lambda: ImageDataset(frame, train(), image="file"), num_workers)


def test_a_missing_column_of_a_data_frame_is_named() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"file": ["x"], "label": [0]})
    with pytest.raises(ValueError, match="no column 'image', but file, label"):
        ImageDataset(frame)


# --- Hugging Face ---------------------------------------------------------------------------------


def oriented(orientation: int, kind: str) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x010F] = "a maker of cameras"
    return encoded(picture((41, 27), orientation), kind, exif=exif)


def with_xmp(orientation: int) -> bytes:
    xmp = f'<x:xmpmeta><rdf:Description tiff:Orientation="{orientation}"/></x:xmpmeta>'
    return encoded(picture((41, 27), orientation), "JPEG", xmp=xmp.encode())


def pictures_of_all_kinds() -> list[bytes]:
    """As Hugging Face's datasets hold them: EXIF, XMP and modes of every kind."""
    files = [oriented(orientation, kind="JPEG") for orientation in range(10)]
    files += [oriented(orientation, kind="PNG") for orientation in (1, 6)]
    files += [with_xmp(1), with_xmp(8)]
    for mode in ("1", "L", "P", "RGB", "RGBA", "LA", "CMYK"):
        image = picture((33, 29), 3, "RGB").convert(mode)
        files.append(encoded(image, "JPEG" if mode == "CMYK" else "PNG"))
    broken = bytearray(oriented(6, kind="JPEG"))
    place = bytes(broken).index(b"Exif\0\0")
    broken[place + 6 : place + 10] = b"XX*\0"
    files += [bytes(broken), *good_files().values()]
    return files


def hugging_face(files: list[Any], **feature: Any) -> Any:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "picture": datasets.Image(**feature),
            "note": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["a", "b", "c"]),
        }
    )
    rows = {
        "picture": [
            {"bytes": file, "path": None} if isinstance(file, bytes) else file for file in files
        ],
        "note": [f"note {number}" for number in range(len(files))],
        "label": [number % 3 for number in range(len(files))],
    }
    return datasets.Dataset.from_dict(rows, features=features)


@WORKERS
def test_hugging_face_with_bytes(num_workers: int) -> None:
    rows = hugging_face(pictures_of_all_kinds())
    assert_native(lambda: ImageDataset(rows, train(), image="picture"), num_workers)
    loader = DataLoader(ImageDataset(rows, train(), image="picture"), num_workers=num_workers)
    list(loader)
    # Seven turned by EXIF, one in a PNG file, two with an orientation in XMP, one broken.
    assert loader.stats()["questions"] == 11


def test_hugging_face_turns_pictures_and_torchvision_does_not(tmp_path: Path) -> None:
    pipeline = v1.Compose([v1.Resize((20, 30)), v1.PILToTensor()])
    turned = ImageDataset(hugging_face([oriented(6, kind="JPEG")]), pipeline, image="picture")
    upright = ImageDataset([(oriented(6, kind="JPEG"), 0)], pipeline)
    ((one, _),), ((other, _),) = DataLoader(turned), DataLoader(upright)
    assert not one.equal(other)


@WORKERS
def test_hugging_face_with_paths_and_a_mode(pictures: Path, num_workers: int) -> None:
    rows = hugging_face([path for path, _ in paths_of(pictures)], mode="RGB")
    assert_native(lambda: ImageDataset(rows, train(), image="picture"), num_workers)


@WORKERS
def test_hugging_face_selected_shuffled_and_with_missing_pictures(num_workers: int) -> None:
    files = [*pictures_of_all_kinds()[:6], None, *bad_files().values()]
    rows = hugging_face(files).shuffle(seed=3).select(range(2, 20))
    assert_native(lambda: Subset(ImageDataset(rows, train(), image="picture"), range(18)), 0)


def test_hugging_face_with_other_modes_or_labels_is_not_native() -> None:
    datasets = pytest.importorskip("datasets")
    gray = hugging_face([jpeg((20, 20), 1)], mode="L")
    assert_torch(ImageDataset(gray, train(), image="picture"), gray)
    rows = hugging_face([jpeg((20, 20), 1)]).cast_column("label", datasets.Value("float32"))
    assert_torch(ImageDataset(rows, train(), image="picture"), rows)


def test_hugging_face_datasets_that_hold_no_pictures_are_refused() -> None:
    datasets = pytest.importorskip("datasets")
    rows = hugging_face([jpeg((20, 20), 1)])
    with pytest.raises(ValueError, match="no column 'image', but picture, note, label"):
        ImageDataset(rows)
    with pytest.raises(ValueError, match="has the format 'torch'"):
        ImageDataset(rows.with_format("torch"), image="picture")
    with pytest.raises(ValueError, match="cast_column"):
        ImageDataset(rows, image="note")
    raw = rows.cast_column("picture", datasets.Image(decode=False))
    with pytest.raises(ValueError, match="cast_column"):
        ImageDataset(raw, image="picture")
    with pytest.raises(TypeError, match="one split"):
        ImageDataset(rows.to_iterable_dataset(), image="picture")


# --- pictures in memory ---------------------------------------------------------------------------


def cifar(kind: type[Any] = CIFAR10, transform: Any = None, size: int = 50) -> Any:
    """CIFAR's object without its files: the arrays as its constructor leaves them."""
    dataset = kind.__new__(kind)
    dataset.transform = transform
    dataset.target_transform = None
    dataset.root, dataset.train = "", True
    rng = np.random.default_rng(7)
    planes = rng.integers(0, 256, (size, 3, 32, 32), dtype=np.uint8)
    dataset.data = planes.transpose(0, 2, 3, 1)
    dataset.targets = rng.integers(0, 10, size).tolist()
    return dataset


def to_tensor() -> Any:
    return v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD)])


@WORKERS
@pytest.mark.parametrize("pipeline", [to_tensor, train, evaluation])
@pytest.mark.parametrize("kind", [CIFAR10, CIFAR100])
def test_cifar(kind: type[Any], pipeline: Any, num_workers: int) -> None:
    assert_native(lambda: cifar(kind, pipeline()), num_workers)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_changed_arrays_are_seen_as_torch_sees_them(num_workers: int) -> None:
    def build(loader_type: Any) -> Any:
        return loader_type(cifar(transform=to_tensor()), batch_size=4, num_workers=num_workers)

    def drive(loader: Any) -> Iterator[Any]:
        iterator = iter(loader)
        yield step(iterator)
        loader.dataset.data[4:40] //= 2
        loader.dataset.targets[5] = 77
        for _ in range(12):
            yield step(iterator)
        yield from epochs(1)(loader)

    assert_same_behaviour(build, drive)


def test_an_array_that_becomes_a_list_goes_on_as_in_torch() -> None:
    def build(loader_type: Any) -> Any:
        return loader_type(cifar(transform=to_tensor()), batch_size=4)

    def drive(loader: Any) -> Iterator[Any]:
        iterator = iter(loader)
        yield step(iterator)
        loader.dataset.data = list(loader.dataset.data)
        for _ in range(13):
            yield step(iterator)

    assert_same_behaviour(build, drive)


def test_other_arrays_are_not_native() -> None:
    for data in (np.zeros((5, 32, 32, 3)), np.zeros((5, 32, 32), np.uint8), [b""] * 5):
        dataset = cifar(transform=to_tensor())
        dataset.data = data
        assert_torch(dataset, dataset)
    dataset = cifar(transform=to_tensor())
    dataset.target_transform = str
    assert_torch(dataset, str)


def test_a_png_of_all_kinds_comes_through_a_pil_image() -> None:
    file = io.BytesIO(encoded(picture((20, 10), 1), "PNG"))
    dataset = ImageDataset([(file.getvalue(), 0)], v1.Compose([v1.Resize((9, 9)), v1.ToTensor()]))
    ((image, _),) = DataLoader(dataset)
    assert image[0].equal(dataset[0][0])
