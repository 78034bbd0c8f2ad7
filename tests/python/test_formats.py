"""PNG files have Pillow's pixels or are left to it; other formats go through Pillow, too."""

import io
import os
import random
import shutil
import struct
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder

from headrace import DataLoader, ImageDataset
from headrace._core import Error, decode_image, inspect_image
from support import (
    assert_same_behaviour,
    encoded,
    epochs,
    evaluation,
    good_files,
    picture,
    step,
    train,
    write_folder,
)

# --- PNG files as no encoder makes them -----------------------------------------------------------

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by color type
KINDS = [(0, 1), (0, 2), (0, 4), (0, 8), (2, 8), (2, 16), (3, 1), (3, 2), (3, 4), (3, 8)]
KINDS += [(4, 8), (4, 16), (6, 8), (6, 16)]
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2)]
ADAM7 += [(0, 1, 1, 2)]


def chunk(name: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


@dataclass
class Png:
    """A PNG file of random pixels and filters, in parts that tests may replace."""

    color_type: int
    bits: int
    width: int
    height: int
    interlaced: bool = False
    seed: int = 0
    colors: int = 0  # of the palette; 0: as many as the bits can name

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.before = b""  # chunks before the image data
        self.after = b""
        self.header = struct.pack(
            ">IIBBBBB", self.width, self.height, self.bits, self.color_type, 0, 0, self.interlaced
        )
        self.palette_size = min(self.colors or 256, 2**self.bits)
        self.pixels = b"".join(self._rows())

    def _rows(self) -> Iterator[bytes]:
        passes = ADAM7 if self.interlaced else [(0, 0, 1, 1)]
        for left, top, step_x, step_y in passes:
            width = -(-(self.width - left) // step_x)
            height = -(-(self.height - top) // step_y)
            for _ in range(height if width > 0 else 0):
                yield self._row(width)

    def _row(self, width: int) -> bytes:
        size = (width * self.bits * CHANNELS[self.color_type] + 7) // 8
        data = self.rng.randbytes(size)
        if self.color_type == 3 and self.bits == 8:  # filters would name colors beyond the palette
            return b"\0" + bytes(byte % self.palette_size for byte in data)
        return bytes([self.rng.randrange(5)]) + data

    def file(self) -> bytes:
        palette = b""
        if self.color_type == 3:
            size = self.palette_size if self.bits == 8 else 2**self.bits
            palette = chunk(b"PLTE", self.rng.randbytes(3 * size))
        data = zlib.compress(self.pixels)
        cut = self.rng.randint(0, len(data))
        return b"".join(
            [
                SIGNATURE,
                chunk(b"IHDR", self.header),
                palette,
                self.before,
                chunk(b"IDAT", data[:cut]),
                chunk(b"IDAT", data[cut:]),
                self.after,
                chunk(b"IEND"),
            ]
        )


def by_pillow(file: bytes) -> Any:
    """(width, height, pixels), or the type of what Pillow raises or warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            image = Image.open(io.BytesIO(file)).convert("RGB")
        except Exception as error:
            return type(error)
    return image.width, image.height, image.tobytes()


def verdict(file: bytes) -> str:
    """ "same" or "doubt"; fails on anything else than Pillow's pixels."""
    try:
        found = decode_image(file)
    except Error:
        return "doubt"
    assert inspect_image(file) == found[:2]
    assert found == by_pillow(file)
    return "same"


@st.composite
def pngs(draw: st.DrawFn) -> Png:
    color_type, bits = draw(st.sampled_from(KINDS))
    side = st.integers(1, 20)
    return Png(
        color_type,
        bits,
        draw(side),
        draw(side),
        draw(st.booleans()),
        draw(st.integers(0, 2**32)),
        draw(st.integers(1, 256)),
    )


@settings(max_examples=400, deadline=None)
@given(pngs(), st.data())
def test_every_kind_of_png_has_pillows_pixels(png: Png, data: st.DataObject) -> None:
    file = png.file()
    assert verdict(file) == "same"
    width = data.draw(st.integers(1, png.width))
    height = data.draw(st.integers(1, png.height))
    left = data.draw(st.integers(0, png.width - width))
    top = data.draw(st.integers(0, png.height - height))
    expected = Image.open(io.BytesIO(file)).convert("RGB")
    expected = expected.crop((left, top, left + width, top + height))
    assert decode_image(file, (left, top, width, height))[2] == expected.tobytes()


def transparency(*values: int) -> bytes:
    return chunk(b"tRNS", struct.pack(f">{len(values)}H", *values))


def palette_alpha(*values: int) -> bytes:
    return chunk(b"tRNS", bytes(values))


LONG = zlib.compress(b"x" * (2 << 20))

# (color type, bits), chunks before the image data, verdict
CHUNKS: dict[str, tuple[tuple[int, int], bytes, str]] = {
    "transparent gray": ((0, 8), transparency(7), "same"),
    "transparent bit": ((0, 1), transparency(1), "same"),
    "transparent color": ((2, 8), transparency(1, 2, 3), "same"),
    "transparent color of 16 bits": ((2, 16), transparency(1, 2, 300), "doubt"),
    "one transparent color of a palette": ((3, 8), palette_alpha(255, 0, 255), "same"),
    "alpha in a palette": ((3, 8), palette_alpha(255, 0, 10), "doubt"),
    "opaque palette": ((3, 8), palette_alpha(255, 255), "doubt"),
    "alpha beside alpha": ((6, 8), transparency(1, 2, 3), "same"),
    "gamma": ((2, 8), chunk(b"gAMA", struct.pack(">I", 22222)), "same"),
    "short gamma": ((2, 8), chunk(b"gAMA", b"\0"), "doubt"),
    "sRGB": ((2, 8), chunk(b"sRGB", b"\0"), "same"),
    "chromaticities": ((2, 8), chunk(b"cHRM", bytes(32)), "same"),
    "resolution": ((2, 8), chunk(b"pHYs", bytes(9)), "same"),
    "short resolution": ((2, 8), chunk(b"pHYs", bytes(8)), "doubt"),
    "color profile": ((2, 8), chunk(b"iCCP", b"p\0\0" + zlib.compress(b"x" * 3000)), "same"),
    "broken color profile": ((2, 8), chunk(b"iCCP", b"p\0\0" + b"x" * 30), "same"),
    "long color profile": ((2, 8), chunk(b"iCCP", b"p\0\0" + LONG), "doubt"),
    "profile without compression": ((2, 8), chunk(b"iCCP", b"p"), "doubt"),
    "text": ((2, 8), chunk(b"tEXt", b"Title\0A picture"), "same"),
    "compressed text": ((2, 8), chunk(b"zTXt", b"Title\0\0" + zlib.compress(b"x")), "same"),
    "long text": ((2, 8), chunk(b"zTXt", b"Title\0\0" + LONG), "doubt"),
    "international text": ((2, 8), chunk(b"iTXt", b"Title\0\0\0de\0Titel\0Ein Bild"), "same"),
    "long international text": ((2, 8), chunk(b"iTXt", b"T\0\1\0\0\0" + LONG), "doubt"),
    "text that poses as transparency": ((2, 8), chunk(b"tEXt", b"transparency\0x"), "doubt"),
    "text that poses as interlacing": ((2, 8), chunk(b"tEXt", b"interlace\0x"), "doubt"),
    "EXIF": ((2, 8), chunk(b"eXIf", b"garbage"), "same"),
    "unknown chunk": ((2, 8), chunk(b"abCd", b"x" * 100), "same"),
    "unknown critical chunk": ((2, 8), chunk(b"ABCD", b"x" * 100), "doubt"),
    "palette of a color image": ((2, 8), chunk(b"PLTE", b"abcdef"), "same"),
    "two palettes": ((3, 8), chunk(b"PLTE", b"abcdef"), "doubt"),
    "animation": ((2, 8), chunk(b"acTL", bytes([0, 0, 0, 2, 0, 0, 0, 0])), "doubt"),
    "bad checksum": ((2, 8), chunk(b"tEXt", b"Title\0A picture")[:-1] + b"x", "doubt"),
}


@pytest.mark.parametrize("case", CHUNKS)
def test_chunks_beside_the_pixels(case: str) -> None:
    kind, chunks, expected = CHUNKS[case]
    png = Png(*kind, 13, 9)
    png.before = chunks
    assert verdict(png.file()) == expected


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (chunk(b"tEXt", b"Title\0A picture"), "same"),
        (chunk(b"tIME", bytes(7)), "same"),
        (transparency(1, 2, 3), "doubt"),
        (chunk(b"tEXt", b"transparency\0x"), "doubt"),
        (chunk(b"IDAT", b"more"), "same"),
        (chunk(b"tIME", bytes(7)) + chunk(b"IDAT", b"more"), "doubt"),
        (chunk(b"zTXt", b"Title\0\0" + LONG), "doubt"),
    ],
)
def test_chunks_after_the_pixels(chunks: bytes, expected: str) -> None:
    png = Png(2, 8, 13, 9)
    png.after = chunks
    assert verdict(png.file()) == expected


@pytest.mark.parametrize(
    "header",
    [
        struct.pack(">IIBBBBB", 0, 9, 8, 2, 0, 0, 0),
        struct.pack(">IIBBBBB", 13, 2**31, 8, 2, 0, 0, 0),
        struct.pack(">IIBBBBB", 13, 9, 3, 2, 0, 0, 0),
        struct.pack(">IIBBBBB", 13, 9, 16, 0, 0, 0, 0),
        struct.pack(">IIBBBBB", 13, 9, 8, 5, 0, 0, 0),
        struct.pack(">IIBBBBB", 13, 9, 8, 2, 1, 0, 0),
        struct.pack(">IIBBBBB", 13, 9, 8, 2, 0, 1, 0),
        struct.pack(">IIBBBBB", 13, 9, 8, 2, 0, 0, 2),
        struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0),
        struct.pack(">IIBBBB", 13, 9, 8, 2, 0, 0),
    ],
)
def test_headers_that_are_pillows_business(header: bytes) -> None:
    png = Png(2, 8, 13, 9)
    png.header = header
    assert isinstance(inspect_image(png.file()), str)


def test_the_pixel_limit_is_the_callers() -> None:
    file = Png(2, 8, 13, 9).file()
    assert inspect_image(file, pixel_limit=13 * 9) == (13, 9)
    assert inspect_image(file, pixel_limit=13 * 9 - 1) == "more pixels than the limit"


@pytest.mark.parametrize("colors", [1, 5, 100, 255])
def test_pixels_that_name_no_color(colors: int) -> None:
    png = Png(3, 8, 50, 20, colors=colors)
    rows = random.Random(colors)
    png.pixels = b"".join(b"\0" + rows.randbytes(50) for _ in range(20))
    verdict(png.file())


@pytest.mark.parametrize("extra", [b"\0" * 40, b""])
def test_too_many_or_too_few_pixels_are_pillows_business(extra: bytes) -> None:
    png = Png(2, 8, 13, 9)
    png.pixels = png.pixels + extra if extra else png.pixels[:-1]
    assert verdict(png.file()) == "doubt"


def with_new_checksums(file: bytes) -> bytes:
    """So that damage is not noticed by the checksums of chunks."""
    result, place = bytearray(file), len(SIGNATURE)
    while place + 12 <= len(result):
        (size,) = struct.unpack_from(">I", result, place)
        end = place + 8 + size
        if end + 4 > len(result):
            break
        struct.pack_into(">I", result, end, zlib.crc32(result[place + 4 : end]))
        place = end + 4
    return bytes(result)


def test_damage_has_pillows_verdict() -> None:
    """Bits flipped, bytes lost and added: where we give pixels, Pillow gives the same."""
    rng = random.Random(3)
    seen = Counter[str]()
    for number in range(3000):
        png = Png(*rng.choice(KINDS), rng.randint(1, 12), rng.randint(1, 12), number % 3 == 0)
        png.before = rng.choice([b"", *(chunks for _, chunks, _ in CHUNKS.values())])
        file = bytearray(png.file())
        place = rng.randrange(len(SIGNATURE), len(file))
        match rng.randrange(4):
            case 0:
                file[place] ^= 1 << rng.randrange(8)
            case 1:
                del file[place : place + rng.randint(1, 4)]
            case 2:
                file[place:place] = rng.randbytes(rng.randint(1, 4))
            case 3:
                del file[place:]
        seen[verdict(with_new_checksums(bytes(file)) if number % 4 else bytes(file))] += 1
    assert seen["same"] > 100 and seen["doubt"] > 1000


# --- EXIF -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_an_orientation_matters_only_where_it_is_applied(kind: str) -> None:
    for orientation in range(10):
        exif = Image.Exif()
        exif[0x0112] = orientation
        file = encoded(picture((30, 20), 1), kind, exif=exif)
        assert inspect_image(file) == (30, 20)
        turned = isinstance(inspect_image(file, upright=True), str)
        assert turned == (2 <= orientation <= 8)


def test_irregular_exif_is_pillows_business() -> None:
    exif = Image.Exif()
    exif[0x0112] = 1
    exif[0x010F] = "a maker of cameras"
    file = encoded(picture((30, 20), 1), "JPEG", exif=exif)
    start = file.index(b"Exif\0\0") + 6
    directory = start + 8
    assert inspect_image(file, upright=True) == (30, 20)
    for place, value in [
        (start, b"XX"),  # byte order
        (start + 4, b"\xff\xff\xff\xff"),  # place of the directory
        (directory, b"\xff\xff"),  # number of its entries
        (directory + 2 + 2, b"\xff\xff"),  # type of the first
        (directory + 2 + 4, b"\xff\xff\xff\xff"),  # its length
        (directory + 2 + 8, b"\xff\xff\xff\xff"),  # its place
        (directory + 14 + 4, b"\2\2\2\2"),  # length of the orientation
    ]:
        spoilt = bytearray(file)
        spoilt[place : place + len(value)] = value
        assert isinstance(inspect_image(bytes(spoilt), upright=True), str)


# --- folders --------------------------------------------------------------------------------------


def files_of_all_formats() -> dict[str, bytes]:
    """Some in every format, most of them with a name that tells another."""
    files = dict(list(good_files().items())[:12])
    for number, kind in enumerate(["PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"]):
        image = picture((40 + number, 30), number)
        files[f"{number} a.jpg"] = encoded(image, kind)
        files[f"{number} b.png"] = encoded(image.convert("L"), kind)
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        deep = Image.frombytes("I;16", (33, 21), random.Random(1).randbytes(2 * 33 * 21))
        image = deep if mode == "I;16" else picture((33, 21), 5).convert(mode)
        files[f"mode {mode.replace(';', ' ')}.png"] = encoded(image, "PNG")
    return files


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("pipeline", [train, evaluation])
def test_a_folder_of_all_formats(tmp_path: Path, pipeline: Any, num_workers: int) -> None:
    write_folder(tmp_path, files_of_all_formats())

    def build(loader_type: Any) -> Any:
        folder = ImageFolder(tmp_path, pipeline())
        return loader_type(folder, batch_size=5, shuffle=True, num_workers=num_workers)

    assert_same_behaviour(build)


def test_png_files_are_not_asked_about(tmp_path: Path) -> None:
    files = {name: file for name, file in files_of_all_formats().items() if "mode" in name}
    write_folder(tmp_path, files)
    loader = DataLoader(ImageFolder(tmp_path, train()), batch_size=3)
    list(loader)
    assert loader.stats()["questions"] == 1  # 16-bit gray


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_weird_corpus_as_a_folder(tmp_path: Path, corpus: Path, num_workers: int) -> None:
    """Every file with an image's name under any of its folders, those of one kind in one class."""
    for kind in sorted((corpus / "weird").iterdir()):
        if kind.is_dir():
            shutil.copytree(kind, tmp_path / kind.name)

    def build(loader_type: Any) -> Any:
        folder = ImageFolder(tmp_path, train(16), allow_empty=True)
        # One by one, so that each file's verdict is seen.
        return loader_type(folder, batch_size=1, num_workers=num_workers)

    assert_same_behaviour(build, epochs(1, at_most=1000))


# --- many files of other formats ------------------------------------------------------------------


def dataset_of(formats: dict[str, int]) -> ImageDataset:
    image = picture((20, 10), 1)
    return ImageDataset(
        [(encoded(image, kind), 0) for kind, count in formats.items() for _ in range(count)],
        train(),
    )


CREATES = "ignore:This DataLoader will create"


@pytest.mark.filterwarnings(CREATES)
@pytest.mark.parametrize(
    ("formats", "num_workers", "path"),
    [
        ({"WEBP": 10}, 0, "native"),
        ({"WEBP": 10}, 1, "native"),
        ({"WEBP": 10}, 2, "torch"),
        ({"JPEG": 10, "PNG": 10, "WEBP": 18}, 2, "native"),
        ({"JPEG": 10, "PNG": 10, "WEBP": 18}, 4, "torch"),
        ({"JPEG": 45, "GIF": 3, "TIFF": 3}, 4, "native"),
        ({"JPEG": 20, "GIF": 5, "TIFF": 5}, 4, "torch"),
        ({"JPEG": 1}, 9, "native"),
        ({"PNG": 1}, 9, "native"),
    ],
)
def test_processes_take_what_pillow_must_decode(
    formats: dict[str, int], num_workers: int, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    dataset = dataset_of(formats)
    loader = DataLoader(Subset(dataset, range(len(dataset))), num_workers=num_workers)
    assert loader.explain().path == path
    if path == "torch":
        assert "worker processes with Pillow are faster" in loader.explain().reason


@pytest.mark.filterwarnings(CREATES)
def test_one_core_gains_nothing_by_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    assert DataLoader(dataset_of({"WEBP": 4}), num_workers=4).explain().path == "native"


def test_a_pipe_does_not_keep_the_look(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    files = [(str(tmp_path / "pipe"), 0), (str(tmp_path / "nowhere"), 0)]
    loader = DataLoader(ImageDataset(files, train()), num_workers=2)
    assert loader.explain().path == "native"


def test_a_format_is_met_in_mid_epoch(tmp_path: Path) -> None:
    def build(loader_type: Any) -> Any:
        dataset = dataset_of({"JPEG": 12, "WEBP": 2, "PNG": 4, "BMP": 1})
        return loader_type(dataset, batch_size=3, num_workers=1)

    def drive(loader: Any) -> Iterator[Any]:
        iterator = iter(loader)
        for _ in range(8):
            yield step(iterator)

    assert_same_behaviour(build, drive)
