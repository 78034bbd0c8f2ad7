"""An epoch's order shared out over ranks, which can go on at another number of ranks."""

import os
from collections.abc import Iterator, Sized
from typing import Any

import torch
import torch.distributed
from torch.utils.data import Sampler

from headrace._core import Error


class ShardedSampler(Sampler[int]):
    """Each rank's part of one order of the whole dataset.

    Position p of the order goes to rank p mod num_replicas, as in torch's DistributedSampler, whose
    indices these are (seed + epoch for torch.randperm). All ranks get equally many. Its place is
    kept for all ranks together, so that an epoch can go on at another number of them: together they
    then give exactly what was left, if all ranks had made equally many steps.

    Args:
        data_source: the dataset; only its length counts.
        num_replicas, rank: None: of torch.distributed if it is initialised, else of torchrun's
            environment (WORLD_SIZE, RANK), else 1 and 0.
        shuffle: another order in each epoch (see set_epoch).
        seed: the same on all ranks.
        remainder: what happens when the ranks cannot have equally many. "drop": the last samples
            are left out; "wrap": the first ones come again (torch's drop_last=False); "pad": the
            same, but :meth:`mask` tells them apart, so that an evaluation counts each sample once.

    Raises:
        ValueError: a rank outside [0, num_replicas), or a remainder that there is not.
    """

    def __init__(
        self,
        data_source: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        remainder: str = "wrap",
    ) -> None:
        ready = torch.distributed.is_available() and torch.distributed.is_initialized()
        if num_replicas is None:
            known = os.environ.get("WORLD_SIZE", "1")
            num_replicas = torch.distributed.get_world_size() if ready else int(known)
        if rank is None:
            rank = torch.distributed.get_rank() if ready else int(os.environ.get("RANK", "0"))
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank must be from 0 to {num_replicas - 1}; got {rank}")
        if remainder not in ("drop", "wrap", "pad"):
            raise ValueError(f"remainder must be 'drop', 'wrap' or 'pad'; got {remainder!r}")
        self.data_source = data_source
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.seed = seed
        self.remainder = remainder
        self.epoch = 0
        # Positions of the order, of all ranks, that the latest iteration has behind it, that it
        # began behind, and that the next one is to begin behind. Loaders come to the iteration's
        # end before their last batch is used, so that the first two stay known after it.
        self._done = 0
        self._begin = 0
        self._next_begin = 0

    def __len__(self) -> int:
        """Samples of this rank from the latest iteration's beginning on; from the next one's if
        load_state_dict() or another epoch has set it."""
        left = max(0, len(self.data_source) - self._begin)  # other ranks may have wrapped
        dropped = self.remainder == "drop"
        return left // self.num_replicas if dropped else -(-left // self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        begin = self._begin = self._next_begin
        self._next_begin = 0
        size = len(self.data_source)
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(size, generator=generator)
        else:
            order = torch.arange(size)
        for step in range(len(self)):
            position = begin + step * self.num_replicas + self.rank
            self._done = begin + (step + 1) * self.num_replicas
            yield int(order[position % size])

    def mask(self) -> torch.Tensor:
        """Which of this rank's samples count, from the latest iteration's beginning on.

        After DataLoader.load_state_dict() that beginning is known once iter(loader) was called.

        Returns:
            bool of shape [len(self)]; with remainder="pad" False at those that fill up.
        """
        positions = self._begin + torch.arange(len(self)) * self.num_replicas + self.rank
        return (positions < len(self.data_source)) | (self.remainder != "pad")

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch's order comes next. Another one than before begins at its beginning."""
        if epoch != self.epoch:
            self._done = self._begin = self._next_begin = 0
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Where the ranks stand together; the same on each of them.

        Loaders take samples ahead of the batches that they yield: save headrace.DataLoader's own
        state_dict() in mid-epoch, which knows where the sampler stood.
        """
        return self._state(self._done)

    def next_state_dict(self) -> dict[str, Any]:
        """Where the next iteration begins; what headrace.DataLoader saves between epochs."""
        return self._state(self._next_begin)

    def _state(self, done: int) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "done": done,
            "samples": len(self.data_source),
            "seed": self.seed,
            "shuffle": self.shuffle,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets the next iteration go on there, on whatever number of ranks.

        Raises:
            Error: it is the state of another order.
        """
        now = self.state_dict()
        for name in ("samples", "seed", "shuffle"):
            if state[name] != now[name]:
                raise Error(
                    f"load_state_dict: the sampler's {name} was {state[name]!r} and is "
                    f"{now[name]!r} now, so that the order is another. Make it as it was"
                )
        self.epoch = state["epoch"]
        self._done = self._begin = self._next_begin = state["done"]
