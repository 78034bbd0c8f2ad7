"""An ordinary training on pictures, for any DataLoader; it notes when it waited for data.

demo.py runs it twice, and the class of the loader is the only difference.
"""

import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torchvision import transforms

IMAGE_SIZE = 64

TRANSFORM = transforms.Compose(
    [
        transforms.RandomResizedCrop(IMAGE_SIZE),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    ]
)


@dataclass(frozen=True)
class Step:
    """One step: its loss, its number of images, and the seconds that it waited and computed."""

    loss: float
    images: int
    waiting_s: float
    training_s: float

    @property
    def loss_bits(self) -> str:
        """The float32 loss in hexadecimal: equal for equal bits only."""
        return struct.pack(">f", self.loss).hex()


def make_loader(loader_class: type, dataset: Any, batch_size: int, num_workers: int) -> Any:
    return loader_class(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )


def make_network(classes: int) -> nn.Module:
    def block(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(3, 16, kernel=5, stride=4),
        *block(16, 32, kernel=3, stride=2),
        *block(32, 64, kernel=3, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def train(
    loader: Iterable[Any], classes: int, epochs: int, seed: int, after_step: Callable[[], None]
) -> list[Step]:
    """Trains a new network; the same batches give the same losses."""
    torch.use_deterministic_algorithms(True)
    # One thread: more would add up floats in another order, and take cores from both loaders.
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    network = make_network(classes)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    loss_of = nn.CrossEntropyLoss()

    steps = []
    mark = time.perf_counter()
    for _ in range(epochs):
        for images, labels in loader:
            arrived = time.perf_counter()
            optimizer.zero_grad()
            loss = loss_of(network(images), labels)
            loss.backward()
            optimizer.step()
            after_step()
            done = time.perf_counter()
            steps.append(Step(loss.item(), len(labels), arrived - mark, done - arrived))
            mark = done
    return steps
