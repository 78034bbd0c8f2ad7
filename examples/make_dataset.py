"""Makes a folder of JPEG pictures that are like photos to a decoder: size, texture, bytes.

    python examples/make_dataset.py FOLDER [--images 960] [--seed 0]

The classes are materials, drawn from noise in random colours and scales under uneven light, so a
small network can tell them apart. The same seed gives the same pictures, on any number of cores.
Three of four have their colours at half resolution (4:2:0), one at full (4:4:4).
"""

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from rich.progress import track

Array = np.ndarray
Random = np.random.Generator

WIDTH, HEIGHT = 500, 375
IMAGES = 960


def resized(values: Array, columns: int, rows: int) -> Array:
    image = Image.fromarray(values).resize((columns, rows), Image.Resampling.BICUBIC)
    return np.asarray(image)


def noise(random: Random, cells_x: float, cells_y: float, octaves: int = 5) -> Array:
    """Smooth noise about 0, in [-1, 1] or so, with `cells_x` x `cells_y` bumps and finer ones."""
    total = np.zeros((2, 2), np.float32)
    for octave in range(octaves):
        columns = min(WIDTH, int(cells_x * 2**octave) + 2)
        rows = min(HEIGHT, int(cells_y * 2**octave) + 2)
        finer = random.standard_normal((rows, columns), np.float32) / 2**octave
        total = resized(total, columns, rows) + finer
    return resized(total, WIDTH, HEIGHT) / 2


def coordinates(random: Random, cells: float) -> tuple[Array, Array]:
    """x and y of each pixel in units of one cell, turned and bent a little."""
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32) * np.float32(cells / WIDTH)
    angle = np.float32(random.uniform(-0.3, 0.3))
    bend = np.float32(0.12) * noise(random, 3, 3, octaves=2)
    turned_x = np.cos(angle) * x - np.sin(angle) * y + bend
    return turned_x, np.sin(angle) * x + np.cos(angle) * y + bend


def bricks(random: Random) -> Array:
    x, y = coordinates(random, random.uniform(4, 8))
    row = np.floor(2 * y)
    x = x + row % 2 / 2
    to_edge = np.minimum(0.5 - np.abs(x % 1 - 0.5), 0.25 - np.abs(2 * y % 1 - 0.5) / 2)
    shade = np.sin(12.9898 * np.floor(x) + 78.233 * row)
    return np.where(to_edge < 0.04, 1.5, 0.4 * shade - 0.5)


def clouds(random: Random) -> Array:
    return 1.3 * noise(random, 3, 3)


def cobbles(random: Random) -> Array:
    x, y = coordinates(random, random.uniform(5, 9))
    column, row = np.floor(x), np.floor(y)
    nearest = np.full(x.shape, 9, np.float32)
    for dx in (-1, 0, 1):
        for dy in (-1, 0, 1):
            hashed = 12.9898 * (column + dx) + 78.233 * (row + dy)
            centre_x = column + dx + 0.5 + 0.35 * np.sin(hashed)
            centre_y = row + dy + 0.5 + 0.35 * np.cos(1.7 * hashed)
            nearest = np.minimum(nearest, (x - centre_x) ** 2 + (y - centre_y) ** 2)
    return 1 - 4 * nearest


def grass(random: Random) -> Array:
    return 1.3 * noise(random, random.uniform(30, 60), 3, octaves=4)


def marble(random: Random) -> Array:
    x, y = coordinates(random, random.uniform(2, 4))
    return 2 * np.abs(np.sin(2 * (x + y) + 3 * noise(random, 3, 3))) - 1.2


def ripples(random: Random) -> Array:
    x, y = coordinates(random, random.uniform(9, 15))
    return np.sin(2 * np.pi * y + noise(random, 4, 4, octaves=2) + 0.5 * np.sin(x))


def weave(random: Random) -> Array:
    x, y = coordinates(random, random.uniform(12, 20))
    over = (np.floor(x) + np.floor(y)) % 2
    across, along = np.abs(np.sin(np.pi * x)), np.abs(np.sin(np.pi * y))
    return 2 * np.where(over > 0, across, along) - 1.2 + 0.5 * over


def wood(random: Random) -> Array:
    x, y = coordinates(random, 3)
    distance = np.hypot(x + random.uniform(-1, 1), 0.15 * y)
    return np.sin(24 * distance + 2 * noise(random, 6, 2, octaves=3))


MATERIALS: list[Callable[[Random], Array]] = [
    bricks,
    clouds,
    cobbles,
    grass,
    marble,
    ripples,
    weave,
    wood,
]


def make_image(folder: Path, seed: int, number: int) -> None:
    """Writes picture `number` into the folder of its class."""
    random = np.random.default_rng([seed, number])
    material = MATERIALS[number % len(MATERIALS)]
    relief = material(random) + 0.5 * noise(random, 12, 9)
    light = 1 + 0.25 * noise(random, 2, 2, octaves=2)
    dark = random.uniform(20, 110, 3).astype(np.float32)
    bright = random.uniform(130, 235, 3).astype(np.float32)
    share = (np.clip(relief, -1.6, 1.6) / 3.2 + 0.5)[..., None]
    pixels = (dark + (bright - dark) * share) * light[..., None]
    # A camera's grain.
    pixels += 8 * random.standard_normal((HEIGHT, WIDTH, 1), np.float32)
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    turn = number // len(MATERIALS)
    if turn % 5 == 0:
        image = image.transpose(Image.Transpose.ROTATE_90)
    path = folder / material.__name__ / f"{number:05}.jpg"
    sampling = "4:4:4" if turn % 4 == 0 else "4:2:0"
    image.save(path, quality=int(random.integers(87, 95)), subsampling=sampling)


def make_dataset(folder: Path, images: int = IMAGES, seed: int = 0) -> None:
    """Makes `folder` with one subfolder for each class; it appears when it is complete.

    Raises:
        FileExistsError: `folder` is there already.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} is there already")
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for material in MATERIALS:
        (unfinished / material.__name__).mkdir(parents=True)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        done = pool.map(partial(make_image, unfinished, seed), range(images), chunksize=8)
        for _ in track(done, f"making {images} pictures", total=images):
            pass
    unfinished.rename(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes a folder of photo-like JPEG pictures.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    try:
        make_dataset(arguments.folder, arguments.images, arguments.seed)
    except OSError as error:
        sys.exit(f"make_dataset: {error}")


if __name__ == "__main__":
    main()
