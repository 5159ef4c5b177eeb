"""Moments of a stream of tensors, gathered on the device they live on."""

import torch

from ropewalk.moments import Moments


class Accumulator:
    """Takes batches of vectors of a fixed set of heads and gives their `Moments`.

    Sums are kept about a shift (the first batch's mean) and in float64, so that a common offset a thousand times the
    spread costs no digits, and so that cutting the stream elsewhere changes nothing beyond the 15th digit. Memory is
    heads · d² numbers, whatever the number of tokens.
    """

    def __init__(self) -> None:
        self._sums: torch.Tensor | None = None

    def update(self, vectors: torch.Tensor, positions: torch.Tensor) -> None:
        """Add vectors [documents, heads, tokens, d] at positions [tokens], the same in every document."""
        documents, heads, tokens, d = vectors.shape
        exact = vectors.to(_exact(vectors.device))
        if self._sums is None:
            self._shift = exact.mean(dim=(0, 2))
            self._t_shift = positions.double().mean()
            self._sums = torch.zeros(heads, d, d, dtype=torch.float64, device=vectors.device)
            self._first = torch.zeros(heads, 2, d, dtype=torch.float64, device=vectors.device)
            self._t_first = torch.zeros(2, dtype=torch.float64, device=vectors.device)
            self._n = 0
        t = positions.double() - self._t_shift
        weights = torch.stack([torch.ones_like(t), t])
        for document in exact:
            x = document - self._shift[:, None]
            # One product per document: its operands are read in place, where joining documents would copy them all.
            self._sums += x.transpose(1, 2) @ x
            self._first += weights.to(x.dtype) @ x
        self._t_first += documents * torch.stack([t.sum(), t @ t])
        self._n += documents * tokens

    def result(self) -> Moments:
        """Moments of everything seen so far."""
        if self._sums is None:
            raise ValueError("no vectors were given")
        sums, first = self._sums.cpu().numpy(), self._first.cpu().numpy()
        shift, t_sums = self._shift.double().cpu().numpy(), self._t_first.cpu().numpy()
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


def _exact(device: torch.device) -> torch.dtype:
    """The widest type the device multiplies in: float64, but float32 on Apple's GPUs, which have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
