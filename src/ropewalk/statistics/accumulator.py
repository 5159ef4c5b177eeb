"""Moments of a stream of tensors, gathered on the device they live on."""

import torch

from ropewalk.geometry.moments import Moments

BLOCK = 512
"""Tokens that are multiplied at once."""


class Accumulator:
    """Takes batches of vectors of a fixed set of heads and gives their `Moments`.

    Vectors are widened to float64 and shifted by the mean of the first ones before they are multiplied, so that a
    common offset a thousand times the spread costs no digits, and so that cutting the stream elsewhere changes nothing
    that matters. Float32 products would be twice as fast, and would make the seventh digit depend on the cut. Memory is
    heads · d² numbers, whatever the number of tokens.
    """

    def __init__(self) -> None:
        self._sums: torch.Tensor | None = None

    def update(self, vectors: torch.Tensor, positions: torch.Tensor) -> None:
        """Add vectors [documents, heads, tokens, d] at positions [tokens] (on the CPU), the same in every document."""
        documents, heads, tokens, d = vectors.shape
        if self._sums is None:
            device, dtype = vectors.device, _widest(vectors.device)
            self._shift = vectors[0, :, :BLOCK].mean(dim=1, keepdim=True, dtype=dtype)
            self._t_shift = positions.double().mean()
            self._sums = torch.zeros(heads, d, d, dtype=dtype, device=device)
            self._first = torch.zeros(heads, 2, d, dtype=dtype, device=device)
            self._t_first = torch.zeros(2, dtype=torch.float64)
            self._n = 0
        t = positions.double() - self._t_shift
        weights = torch.stack([torch.ones_like(t), t]).to(self._sums).expand(heads, -1, -1)
        for document in vectors:
            for start in range(0, tokens, BLOCK):
                block = slice(start, start + BLOCK)
                # Widened and shifted in one pass over the vectors as they lie, a piece at a time that stays in cache.
                x = document[:, block] - self._shift
                self._sums.baddbmm_(x.transpose(1, 2), x)
                self._first.baddbmm_(weights[:, :, block], x)
        self._t_first += documents * torch.stack([t.sum(), t @ t])
        self._n += documents * tokens

    def result(self) -> Moments:
        """Moments of everything seen so far."""
        if self._sums is None:
            raise ValueError("no vectors were given")
        sums, first = self._sums.cpu().double().numpy(), self._first.cpu().double().numpy()
        shift, t_sums = self._shift[:, 0].cpu().double().numpy(), self._t_first.numpy()
        n, heads = float(self._n), len(sums)
        mean, t_mean = first[:, 0] / n, t_sums[0] / n
        ones = torch.ones(heads, dtype=torch.float64).numpy()
        return Moments(
            n=n * ones,
            mean=shift + mean,
            t_mean=(float(self._t_shift) + t_mean) * ones,
            sxx=sums - n * mean[:, :, None] * mean[:, None, :],
            sxt=first[:, 1] - n * mean * t_mean,
            stt=(t_sums[1] - n * t_mean**2) * ones,
        )


def _widest(device: torch.device) -> torch.dtype:
    """The widest type the device multiplies in: float64, but float32 on Apple's GPUs, which have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
