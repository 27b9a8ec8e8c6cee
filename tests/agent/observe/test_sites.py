"""Places in the user's code."""

import sys

import torch

from caboose.observe.sites import Site, site_of


class Helper(torch.nn.Module):
    """Called through frames of torch, as a script's own wrapper around a function of torch is."""

    def forward(self) -> Site:
        return site_of(sys._getframe())


def test_two_lines_are_two_places_also_through_a_helper_that_a_library_calls() -> None:
    helper = Helper()
    first = helper()
    second = helper()
    assert first != second


def test_one_line_is_one_place() -> None:
    helper = Helper()
    first, second = (helper() for _ in range(2))
    assert first == second
