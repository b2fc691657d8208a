"""One request with one query token, as the emulator takes it and as a call."""

from dataclasses import dataclass

import torch
from torch import Tensor

from reference.inputs import Inputs
from reference.problem import Dims, Problem


@dataclass(frozen=True)
class Drawn:
    query: Tensor  # [rows, 576] in the input's dtype
    keys: Tensor  # [keys, 576]
    scale: float
    splits: int = 1

    @property
    def problem(self) -> Problem:
        dtype = str(self.keys.dtype).removeprefix("torch.")
        return Problem(Dims(len(self.query), 1), dtype, 2, (len(self.keys),), self.scale)

    @property
    def inputs(self) -> Inputs:
        pages = -(-len(self.keys) // 2)
        pool = torch.zeros(2 * pages, self.keys.shape[1], dtype=self.keys.dtype)
        pool[: len(self.keys)] = self.keys
        return Inputs(
            query=self.query[None, None],
            kv_cache=pool.view(pages, 2, -1),
            block_tables=torch.arange(pages, dtype=torch.int32)[None],
            seq_lens=torch.tensor([len(self.keys)], dtype=torch.int32),
            causal_seqs=None,
        )
