"""JPEG files are decoded with Pillow's pixels, or left to Pillow: never anything else."""

from __future__ import annotations

import io
import os
import random
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from headrace import _core

Decoded = tuple[int, int, bytes]
Region = tuple[int, int, int, int]  # left, top, width, height

FUZZ_CASES = int(os.environ.get("HEADRACE_FUZZ_CASES", "1000"))
FUZZ_SEED = int(os.environ.get("HEADRACE_FUZZ_SEED", "1"))


def by_pillow(file: bytes) -> Decoded | str:
    """Pillow's pixels, or why it refuses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(io.BytesIO(file)).convert("RGB")
        except Exception as error:
            return repr(error)
    return image.width, image.height, image.tobytes()


def by_headrace(file: bytes, region: Region | None = None) -> Decoded | str:
    """headrace's pixels, or its doubt."""
    size = _core.inspect_image(file)
    if isinstance(size, str):
        return size
    try:
        decoded = _core.decode_image(file, region)
    except RuntimeError as error:
        return str(error)
    assert decoded[:2] == (size if region is None else region[2:])
    return decoded


def accepted_as_pillow_does(file: bytes, region: Region | None = None) -> bool:
    """False for a doubt; a difference from Pillow fails the test."""
    decoded = by_headrace(file, region)
    if isinstance(decoded, str):
        return False
    expected = by_pillow(file)
    assert not isinstance(expected, str), f"Pillow refuses what was accepted: {expected}"
    if region is not None:
        expected = cut(expected, region)
    assert decoded[:2] == expected[:2]
    assert decoded[2] == expected[2], f"other pixels than Pillow's in {region or 'the whole'}"
    return True


def cut(image: Decoded, region: Region) -> Decoded:
    left, top, width, height = region
    rows = np.frombuffer(image[2], np.uint8).reshape(image[1], image[0], 3)
    return width, height, rows[top : top + height, left : left + width].tobytes()


def any_region(size: tuple[int, int], rng: random.Random) -> Region:
    """Often at an edge, often a pixel wide or high, often all of it."""

    def part(whole: int) -> tuple[int, int]:
        length = rng.choice([1, min(2, whole), rng.randint(1, whole), rng.randint(1, whole), whole])
        return rng.choice([0, whole - length, rng.randint(0, whole - length)]), length

    (left, width), (top, height) = part(size[0]), part(size[1])
    return left, top, width, height


# --- Intact files of every kind -------------------------------------------------------------------


def picture(mode: str = "RGB", width: int = 61, height: int = 43) -> Image.Image:
    """Gradients under noise: every frequency occurs, no block is flat."""
    rng = np.random.default_rng(7)
    bands = len(Image.new(mode, (1, 1)).getbands())
    y, x = np.mgrid[0:height, 0:width]
    noise = rng.integers(0, 60, x.shape)
    planes = [(x * (3 + b) + y * (5 - b) + noise) % 256 for b in range(bands)]
    pixels = np.stack(planes, axis=-1).astype(np.uint8)
    return Image.frombytes(mode, (width, height), pixels.tobytes())


def save(image: Image.Image, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, **{"format": "JPEG", "quality": 90, **options})
    return out.getvalue()


def segment(marker: int, payload: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(payload) + 2) + payload


def with_segment(file: bytes, marker: int, payload: bytes) -> bytes:
    """The file with one more segment right behind the start of image."""
    return file[:2] + segment(marker, payload) + file[2:]


def split(file: bytes) -> tuple[list[bytes], bytes]:
    """The segments before the first scan, and the rest from its marker on."""
    parts, at = [], 2
    while file[at + 1] != 0xDA:
        end = at + 2 + struct.unpack(">H", file[at + 2 : at + 4])[0]
        parts.append(file[at:end])
        at = end
    return parts, file[at:]


def with_sampling(file: bytes, factors: int, width: int, height: int) -> bytes:
    """Another shape of the first component's blocks in a unit, and a size of as many units."""
    parts, rest = split(file)
    (frame,) = [i for i, part in enumerate(parts) if part[1] in (0xC0, 0xC2)]
    changed = bytearray(parts[frame])
    changed[5:9] = struct.pack(">HH", height, width)
    changed[11] = factors
    parts[frame] = bytes(changed)
    return file[:2] + b"".join(parts) + rest


def one_scan_per_component() -> bytes:
    """A sequential file of three scans, put together from three gray ones."""
    grays = [save(band) for band in picture().split()]
    parts, _ = split(grays[0])
    frame = struct.pack(">BHHB", 8, 43, 61, 3) + b"\x01\x11\0\x02\x11\0\x03\x11\0"
    parts = [segment(0xC0, frame) if part[1] == 0xC0 else part for part in parts]
    scans = []
    for i, gray in enumerate(grays):
        scan = bytearray(split(gray)[1][:-2])
        scan[5] = i + 1  # the component's name
        scans.append(bytes(scan))
    return b"\xff\xd8" + b"".join(parts) + b"".join(scans) + b"\xff\xd9"


def ycck() -> bytes:
    return save(picture("CMYK")).replace(b"Adobe\0\x64\0\0\0\0\0", b"Adobe\0\x64\0\0\0\0\x02")


def multi_picture() -> bytes:
    return save(picture(), format="MPO", save_all=True, append_images=[picture(), picture()])


def exif(**tags: float) -> bytes:
    values = Image.Exif()
    values[0x010F] = "a camera"
    values[0x0112] = 6
    for tag, value in {"0x011A": 72.0, "0x0128": 3, **tags}.items():
        values[int(tag, 16)] = value
    return values.tobytes()


PHOTOSHOP = b"Photoshop 3.0\0" + b"8BIM\x04\x04\0\0" + struct.pack(">I", 5) + b"title\0"
PHOTOSHOP_RESOLUTION = b"8BIM\x03\xed\0\0" + struct.pack(
    ">IIHHIHH", 16, 1 << 22, 1, 1, 1 << 22, 1, 1
)


def intact_files() -> dict[str, bytes]:
    rgb = picture()
    cmyk = picture("CMYK")
    files = {
        "4:4:4": save(rgb, subsampling=0),
        "4:2:2": save(rgb, subsampling=1),
        "4:2:0": save(rgb, subsampling=2),
        "4:4:0": with_sampling(save(picture(width=64, height=32), subsampling=1), 0x12, 32, 64),
        "4:1:1": with_sampling(save(picture(width=64, height=32), subsampling=2), 0x41, 128, 16),
        "4:1:0 upright": with_sampling(
            save(picture(width=64, height=32), subsampling=2), 0x14, 32, 64
        ),
        "gray": save(picture("L")),
        "gray with factors": with_sampling(save(picture("L")), 0x22, 61, 43),
        "RGB kept": save(rgb, keep_rgb=True),
        "CMYK": save(cmyk),
        "YCCK": ycck(),
        "optimized tables": save(rgb, optimize=True),
        "progressive": save(rgb, progressive=True, subsampling=0),
        "progressive 4:2:0": save(rgb, progressive=True, subsampling=2),
        "progressive gray": save(picture("L"), progressive=True),
        "progressive CMYK": save(cmyk, progressive=True),
        "restarts in rows": save(rgb, restart_marker_rows=1),
        "restarts in blocks": save(rgb, restart_marker_blocks=3),
        "progressive with restarts": save(rgb, progressive=True, restart_marker_blocks=2),
        "one scan per component": one_scan_per_component(),
        "resolution": save(rgb, dpi=(300, 300)),
        "comment": save(rgb, comment=b"a comment"),
        "EXIF": save(rgb, exif=exif()),
        "EXIF without JFIF": save(cmyk, exif=exif()),
        "ICC in two segments": save(rgb, icc_profile=bytes(range(256)) * 300),
        "XMP": with_segment(
            save(rgb), 0xE1, b"http://ns.adobe.com/xap/1.0/\0" + b'tiff:Orientation="3"' * 9
        ),
        "Photoshop": with_segment(save(rgb), 0xED, PHOTOSHOP + PHOTOSHOP_RESOLUTION),
        "large application segment": with_segment(save(rgb), 0xE5, b"\xff\xd8\xff\xd9" * 16000),
        "multi-picture": multi_picture(),
        "fill bytes before the end": save(rgb)[:-2] + b"\xff\xff\xff\xd9",
        "bytes behind the end": save(rgb) + b"\0" * 9000 + b"\xff\xd8\xff",
        "quality 1": save(rgb, quality=1),
        "quality 100": save(rgb, quality=100),
        "many chunks of Pillow's reader": save(
            picture(width=700, height=500), quality=100, subsampling=0
        ),
    }
    for size in [(1, 1), (1, 9), (9, 1), (8, 8), (16, 16), (17, 15)]:
        for subsampling in (0, 1, 2):
            files[f"{size[0]}x{size[1]} {subsampling}"] = save(
                picture("RGB", *size), subsampling=subsampling
            )
    return files


INTACT = intact_files()


@pytest.mark.parametrize("kind", INTACT)
def test_intact_file_is_accepted_with_pillows_pixels(kind: str) -> None:
    file = INTACT[kind]
    assert not isinstance(by_headrace(file), str), by_headrace(file)
    assert accepted_as_pillow_does(file)


def test_ycck_is_converted_and_not_taken_for_cmyk() -> None:
    assert by_headrace(INTACT["YCCK"]) != by_headrace(INTACT["CMYK"])


# --- Regions --------------------------------------------------------------------------------------


def many_blocks() -> dict[str, bytes]:
    """Pictures of many rows of blocks, some cut within the last one, of every sampling."""
    files = {}
    for factors, made_from in {0x11: 0, 0x21: 1, 0x12: 1, 0x22: 2, 0x41: 2, 0x14: 2}.items():
        units = {0: 20 * 16, 1: 10 * 16, 2: 10 * 8}[made_from]
        for options in ({}, {"progressive": True}, {"restart_marker_blocks": 7}):
            file = save(picture(width=160, height=128), subsampling=made_from, **options)
            across, down = 8 * (factors >> 4), 8 * (factors & 15)
            odd = 0 if options.get("progressive") else 5
            size = (10 * across - odd, units // 10 * down - odd)
            files[f"{factors:x} {options}"] = with_sampling(file, factors, *size)
    return files


REGION_KINDS = INTACT | many_blocks()


@pytest.mark.parametrize("kind", REGION_KINDS)
def test_any_region_has_the_pixels_of_the_whole(kind: str) -> None:
    file = REGION_KINDS[kind]
    whole = by_headrace(file)
    assert not isinstance(whole, str), whole
    assert accepted_as_pillow_does(file)
    rng = random.Random(kind)
    for _ in range(FUZZ_CASES // 10):
        region = any_region(whole[:2], rng)
        assert by_headrace(file, region) == cut(whole, region), region


@pytest.mark.parametrize("region", [(-1, 0, 1, 1), (0, 0, 62, 1), (61, 0, 1, 1), (0, 0, 1, 0)])
def test_region_outside_of_the_image_is_refused(region: Region) -> None:
    with pytest.raises(_core.Error, match="region"):
        _core.decode_image(INTACT["4:4:4"], region)


def test_damage_below_a_region_is_left_alone_and_above_it_is_a_doubt() -> None:
    parts, rest = split(save(picture(width=64, height=200), subsampling=0))
    middle = len(rest) // 2
    file = b"\xff\xd8" + b"".join(parts) + rest[:middle] + bytes(60) + rest[middle:]
    assert accepted_as_pillow_does(file, (0, 0, 64, 60))
    assert isinstance(by_headrace(file), str)
    assert isinstance(by_headrace(file, (0, 190, 64, 10)), str)


# --- The corpus -----------------------------------------------------------------------------------


def files_under(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()]


@pytest.mark.parametrize("kind", ["photos", "camera", "weird"])
def test_corpus_is_decoded_as_by_pillow_or_doubted(corpus: Path, kind: str) -> None:
    files = files_under(corpus / kind)
    accepted = sum(accepted_as_pillow_does(file) for file in files)
    # Most weird files are no JPEG, or broken.
    at_least = {"photos": 1.0, "camera": 1.0, "weird": 0.3}[kind]
    assert accepted >= at_least * len(files), f"only {accepted} of {len(files)} accepted"


# --- Doubts ---------------------------------------------------------------------------------------


def doubtful_files() -> dict[str, tuple[bytes, str]]:
    base, progressive = INTACT["4:2:0"], INTACT["progressive"]
    parts, rest = split(base)
    start = b"\xff\xd8"
    no_jfif = start + b"".join(parts[1:]) + rest
    resolution_is_a_byte = struct.pack(">HHII", 0x011A, 1, 1, 72 << 24)
    unit = struct.pack(">HHIHH", 0x0128, 3, 1, 2, 0)
    odd_exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x02" + resolution_is_a_byte + unit + b"\0" * 4
    return {
        "empty": (b"", "neither a JPEG"),
        "no end": (base[:-2], "no end-of-image"),
        "cut in the data": (base[:-200], "no end-of-image"),
        "cut in a segment": (base[:100], "cut off"),
        "end after half the data": (base[:-200] + b"\xff\xd9", "premature end"),
        "data left over": (base[:-2] + bytes(9) + base[-2:], "extraneous"),
        "no Huffman tables": (
            start + b"".join(p for p in parts if p[1] != 0xC4) + rest,
            "missing Huffman",
        ),
        "no quantization tables": (
            start + b"".join(p for p in parts if p[1] != 0xDB) + rest,
            "Quantization",
        ),
        "no frame": (start + b"".join(p for p in parts if p[1] != 0xC0) + rest, "before the frame"),
        "two frames": (start + b"".join(parts + parts) + rest, "more than one frame"),
        "arithmetic coding": (base.replace(b"\xff\xc0", b"\xff\xc9"), "FFC9"),
        "12 bits": (base.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"), "8 bits"),
        "height given later": (with_sampling(base, 0x22, 61, 0), "height"),
        "number of lines": (base[:-2] + segment(0xDC, b"\0\x2b") + base[-2:], "FFDC"),
        "image in the data": (base[:-90] + b"\xff\xd8" + base[-90:], "FFD8"),
        "restart without interval": (base[:-90] + b"\xff\xd0" + base[-90:], "out of sequence"),
        "fill bytes": (start + parts[0] + b"\xff" + b"".join(parts[1:]) + rest, "FFFF"),
        "stray byte": (start + parts[0] + b"\0" + b"".join(parts[1:]) + rest, "stray"),
        "a progressive scan twice": (progressive[:-2] + split(progressive)[1], "out of order"),
        "a progressive scan missing": (
            progressive[: progressive.rindex(b"\xff\xda")] + b"\xff\xd9",
            "incomplete",
        ),
        "short JFIF": (with_segment(base, 0xE0, b"JFIF\0\x01"), "JFIF"),
        "JFIF of another version": (with_segment(base, 0xE0, b"JFIF\0\x02" + bytes(9)), "JFIF"),
        "short ICC": (with_segment(base, 0xE2, b"ICC_PROFILE\0\x01"), "ICC"),
        "cut Photoshop": (with_segment(base, 0xED, PHOTOSHOP + b"8BIM\x04\x04"), "Photoshop"),
        "short Adobe": (with_segment(base, 0xEE, b"Adobe\0"), "Adobe"),
        "odd EXIF": (with_segment(no_jfif, 0xE1, odd_exif), "EXIF"),
    }


DOUBTFUL = doubtful_files()


@pytest.mark.parametrize("kind", DOUBTFUL)
def test_doubtful_file_is_left_to_pillow(kind: str) -> None:
    file, reason = DOUBTFUL[kind]
    doubt = by_headrace(file)
    assert isinstance(doubt, str)
    assert reason in doubt


@pytest.mark.parametrize(
    "kind", ["short JFIF", "short ICC", "cut Photoshop", "short Adobe", "odd EXIF"]
)
def test_pillow_refuses_files_for_their_metadata(kind: str) -> None:
    """The reason for judging metadata at all. When this fails, Pillow has become more tolerant."""
    assert isinstance(by_pillow(DOUBTFUL[kind][0]), str)


def test_pixel_limit_counts_pixels() -> None:
    file = INTACT["4:2:0"]
    assert _core.inspect_image(file, pixel_limit=61 * 43) == (61, 43)
    assert isinstance(_core.inspect_image(file, pixel_limit=61 * 43 - 1), str)


def test_pixel_limit_is_pillows_by_default() -> None:
    limit = Image.MAX_IMAGE_PIXELS
    assert limit is not None
    wide = with_sampling(INTACT["gray"], 0x11, 65535, limit // 65535)
    wider = with_sampling(INTACT["gray"], 0x11, 65535, limit // 65535 + 1)
    assert isinstance(_core.inspect_image(wide), tuple)
    assert isinstance(_core.inspect_image(wider), str)


# --- Mutations ------------------------------------------------------------------------------------


def made_seeds() -> list[bytes]:
    return [file for file in INTACT.values() if len(file) < 30_000]


def corpus_seeds(corpus: Path) -> list[bytes]:
    seeds = files_under(corpus / "photos")[:20]
    seeds += [file for file in files_under(corpus / "weird" / "jpeg") if len(file) < 20_000]
    parts, rest = split(INTACT["4:2:0"])
    tables = [part for part in parts if part[1] < 0xE0]
    for file in files_under(corpus / "camera"):  # their metadata only, on a small picture
        metadata = [part for part in split(file)[0] if part[1] >= 0xE0]
        seeds.append(b"\xff\xd8" + b"".join(metadata + tables) + rest)
    return seeds


class Mutator:
    """Breaks intact files in the ways of disks, networks, editors and attackers."""

    def __init__(self, seeds: list[bytes], rng: random.Random) -> None:
        self.seeds = seeds
        self.rng = rng
        self.steps = [
            self.truncate,
            self.flip_bits,
            self.set_bytes,
            self.set_header_bytes,
            self.remove,
            self.repeat,
            self.insert_marker,
            self.insert_segment,
            self.swap_segments,
            self.drop_segment,
            self.repeat_segment,
            self.foreign_head,
            self.set_segment_start,
        ]

    def mutant(self) -> bytes:
        file = self.rng.choice(self.seeds)
        for _ in range(self.rng.choice([1, 1, 1, 2, 3])):
            if len(file) > 4:
                file = self.rng.choice(self.steps)(file)
        if self.rng.random() < 0.3 and not file.endswith(b"\xff\xd9"):
            file += b"\xff\xd9"
        return file

    def parts(self, file: bytes) -> tuple[list[bytes], bytes]:
        try:
            return split(file)
        except (IndexError, struct.error):
            return [], file[2:]

    def join(self, parts: list[bytes], rest: bytes) -> bytes:
        return b"\xff\xd8" + b"".join(parts) + rest

    def truncate(self, file: bytes) -> bytes:
        return file[: self.rng.randrange(len(file))]

    def flip_bits(self, file: bytes) -> bytes:
        changed = bytearray(file)
        for _ in range(self.rng.choice([1, 1, 2, 8, 64])):
            changed[self.rng.randrange(len(file))] ^= 1 << self.rng.randrange(8)
        return bytes(changed)

    def set_bytes(self, file: bytes) -> bytes:
        changed = bytearray(file)
        for _ in range(min(len(file), self.rng.choice([1, 2, 4]))):
            value = self.rng.choice([0, 1, 0xFF, self.rng.randrange(256)])
            changed[self.rng.randrange(len(file))] = value
        return bytes(changed)

    def set_header_bytes(self, file: bytes) -> bytes:
        return self.set_bytes(file[:700]) + file[700:]

    def remove(self, file: bytes) -> bytes:
        at = self.rng.randrange(len(file))
        return file[:at] + file[at + self.rng.choice([1, 2, 16, 500]) :]

    def repeat(self, file: bytes) -> bytes:
        at = self.rng.randrange(len(file))
        return file[: at + self.rng.choice([1, 2, 16, 500])] + file[at:]

    def insert_marker(self, file: bytes) -> bytes:
        at = self.rng.randrange(len(file))
        return file[:at] + bytes([0xFF, self.rng.randrange(256)]) + file[at:]

    def insert_segment(self, file: bytes) -> bytes:
        marker, name = self.rng.choice(
            [
                (0xE0, b"JFIF\0"),
                (0xE1, b"Exif\0\0MM\0*"),
                (0xE2, b"ICC_PROFILE\0"),
                (0xE2, b"MPF\0II*\0"),
                (0xED, b"Photoshop 3.0\0"),
                (0xEE, b"Adobe"),
                *((marker, b"") for marker in (0xC4, 0xDA, 0xDB, 0xDD, 0xFE)),
            ]
        )
        payload = name + self.rng.randbytes(self.rng.choice([0, 1, 2, 9, 70]))
        parts, rest = self.parts(file)
        parts.insert(self.rng.randint(0, len(parts)), segment(marker, payload))
        return self.join(parts, rest)

    def swap_segments(self, file: bytes) -> bytes:
        parts, rest = self.parts(file)
        self.rng.shuffle(parts)
        return self.join(parts, rest)

    def drop_segment(self, file: bytes) -> bytes:
        parts, rest = self.parts(file)
        if parts:
            parts.pop(self.rng.randrange(len(parts)))
        return self.join(parts, rest)

    def repeat_segment(self, file: bytes) -> bytes:
        parts, rest = self.parts(file)
        if parts:
            parts.insert(self.rng.randrange(len(parts)), self.rng.choice(parts))
        return self.join(parts, rest)

    def foreign_head(self, file: bytes) -> bytes:
        _, rest = self.parts(file)
        parts, _ = self.parts(self.rng.choice(self.seeds))
        return self.join(parts, rest)

    def set_segment_start(self, file: bytes) -> bytes:
        parts, rest = self.parts(file)
        if parts:
            i = self.rng.randrange(len(parts))
            parts[i] = parts[i][:2] + self.set_bytes(parts[i][2:40]) + parts[i][40:]
        return self.join(parts, rest)


def compare_mutants(seeds: list[bytes], kept_in: Path) -> None:
    mutator = Mutator(seeds, random.Random(FUZZ_SEED))
    accepted = region_accepted = 0
    for case in range(FUZZ_CASES):
        file = mutator.mutant()
        try:
            accepted += accepted_as_pillow_does(file)
            size = _core.inspect_image(file)
            if not isinstance(size, str):
                region_accepted += accepted_as_pillow_does(file, any_region(size, mutator.rng))
        except AssertionError as error:
            culprit = kept_in / "culprit.jpg"
            culprit.write_bytes(file)
            pytest.fail(f"case {case} of seed {FUZZ_SEED}, kept as {culprit}: {error}")
    assert accepted > FUZZ_CASES / 20, "so few accepted that nothing was compared"
    assert region_accepted > accepted, "damage below a region should not matter"


def test_mutated_files_are_decoded_as_by_pillow_or_doubted(tmp_path: Path) -> None:
    compare_mutants(made_seeds(), tmp_path)


def test_mutated_corpus_files_are_decoded_as_by_pillow_or_doubted(
    corpus: Path, tmp_path: Path
) -> None:
    compare_mutants(made_seeds() + corpus_seeds(corpus), tmp_path)


def test_tolerance_for_truncated_files_leaves_intact_ones_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert all(accepted_as_pillow_does(file) for file in INTACT.values())
