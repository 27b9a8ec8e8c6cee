"""The subsample of a tensor represents all of it: rows, columns and their periods, for the shapes of real models."""

import numpy as np
import pytest
import torch

from caboose.tensors import subsample
from caboose.tensors.subsample import WIDTH, row, sample

SHAPES = {
    "attention": (4096, 4096),
    "small attention": (1024, 1024),
    "embedding": (32000, 4096),
    "odd embedding": (50257, 768),
    "mlp up": (3072, 768),
    "mlp down": (768, 3072),
    "fused qkv": (2304, 768),
    "first convolution": (64, 3, 7, 7),
    "convolution": (512, 512, 3, 3),
    "head": (1000, 2048),
    "few classes": (10, 64),
    "tokens": (4, 512, 768),
    "images": (8, 64, 28, 28),
    "norm": (768,),
    "just enough": (513, 1),
}


def positions(shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Which elements are read, by reading their own positions."""
    whole = torch.arange(int(np.prod(shape)), dtype=torch.float64).reshape(shape)
    return subsample._row(whole).reshape(-1).to(torch.int64).numpy()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_rows_and_columns_are_visited_evenly(shape: tuple[int, ...]) -> None:
    if int(np.prod(shape)) > 2**25:
        shape = (shape[0] // 8, *shape[1:])
    found, num_columns = positions(shape), int(np.prod(shape[1:])) if len(shape) != 3 else shape[-1]
    num_rows = int(np.prod(shape)) // num_columns
    assert len(found) == WIDTH
    assert len(set(found.tolist())) == min(WIDTH, int(np.prod(shape)))
    for values, size in ((found // num_columns, num_rows), (found % num_columns, num_columns)):
        if size < 16:
            continue
        counts = np.bincount(values * 16 // size, minlength=16)
        # Four standard deviations of a random sample; where 16 does not divide the size, bands differ by one row.
        share = np.bincount(np.arange(size) * 16 // size, minlength=16) / size
        assert (np.abs(counts - WIDTH * share) < 4 * np.sqrt(WIDTH * share * (1 - share))).all(), counts


@pytest.mark.parametrize("shape", [(4096, 1024), (768, 3072), (512, 256, 3, 3)])
def test_a_period_of_the_columns_is_no_blind_spot(shape: tuple[int, ...]) -> None:
    """Rotary pairs, 3 x 3 kernels, heads."""
    for period in (2, 3, 8, 64):
        counts = np.bincount(positions(shape) % int(np.prod(shape[1:])) % period, minlength=period)
        assert counts.min() > 0, period
        assert counts.max() < 2.5 * WIDTH / period, period


def test_statistics_of_the_subsample_are_those_of_the_whole() -> None:
    """Columns of very different sizes, as the input features of real matrices are; one column says nothing of them."""
    torch.manual_seed(1)
    whole = torch.randn(2048, 2048) * torch.logspace(-3, 3, 2048)
    norm = subsample.sample([whole])[0].square().mean().sqrt()
    assert 0.5 < float(norm / whole.square().mean().sqrt()) < 2.0

    sparse = (torch.arange(2048) % 4 == 0).float().expand(2048, 2048).contiguous()
    assert float(subsample.zero_fraction(sample([sparse]))) == pytest.approx(0.75, abs=0.06)


def test_a_view_is_read_without_a_copy_as_if_it_were_contiguous() -> None:
    whole = torch.randn(300, 700)

    assert torch.equal(row(whole.t()), row(whole.t().contiguous()))
    assert torch.equal(row(whole[:, ::2]), row(whole[:, ::2].contiguous()))


def test_a_small_tensor_repeats_its_elements() -> None:
    assert row(torch.arange(3.0)).tolist()[:6] == [0, 1, 2, 0, 1, 2]
    assert row(torch.empty(0)).tolist() == [0.0] * WIDTH
