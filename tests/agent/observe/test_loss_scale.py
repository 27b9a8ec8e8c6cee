"""The loss of a step where the loop scales it before `backward`: by micro-batches, by tokens, by a weight."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from caboose.guard import Guard
from caboose.observe.losses import BackwardLosses

CLASSES = 7


@pytest.fixture
def losses() -> Iterator[BackwardLosses]:
    """Sees every backward pass of this process."""
    seen = BackwardLosses(Guard().protect)
    seen.start()
    yield seen
    seen.stop()


@pytest.fixture
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, CLASSES)


def taken(losses: BackwardLosses) -> float:
    loss = losses.take_mean()
    assert loss is not None
    return loss.item()


def batch(num_tokens: int, num_ignored: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    targets = torch.randint(0, CLASSES, (num_tokens,))
    targets[:num_ignored] = -100
    return torch.randn(num_tokens, 4), targets


def as_number(count: torch.Tensor) -> int:
    return int(count)


def as_tensor(count: torch.Tensor) -> torch.Tensor:
    return count


NUMBERS = pytest.mark.parametrize("as_count", [as_number, as_tensor])


@NUMBERS
@pytest.mark.parametrize("is_on_the_left", [True, False])
@pytest.mark.parametrize("sizes", [(9,), (9, 5), (8, 8, 3)])
def test_a_loss_times_its_tokens_is_reported_per_token(
    losses: BackwardLosses,
    model: torch.nn.Module,
    as_count: Callable[[torch.Tensor], int | torch.Tensor],
    is_on_the_left: bool,
    sizes: tuple[int, ...],
) -> None:
    """The gradients are divided by all tokens later, as the recipes of torchtune do."""
    total, tokens = 0.0, 0
    for size in sizes:
        inputs, targets = batch(size, num_ignored=2)
        count = (targets != -100).sum()
        loss = F.cross_entropy(model(inputs), targets)
        total, tokens = total + loss.item() * int(count), tokens + int(count)
        (as_count(count) * loss if is_on_the_left else loss * as_count(count)).backward()
    assert taken(losses) == pytest.approx(total / tokens, rel=1e-5)


@NUMBERS
@pytest.mark.parametrize("num_ignored", [0, 3])
def test_shares_of_a_step_are_added(
    losses: BackwardLosses,
    model: torch.nn.Module,
    as_count: Callable[[torch.Tensor], int | torch.Tensor],
    num_ignored: int,
) -> None:
    """Each micro-batch's sum is divided by the tokens of all, as OLMo-core and torchtitan do."""
    for count in (4, 4, 2):
        batches = [batch(8, num_ignored) for _ in range(count)]
        tokens = torch.stack([(targets != -100).sum() for _, targets in batches]).sum()
        expected = 0.0
        for inputs, targets in batches:
            loss = F.cross_entropy(model(inputs), targets, reduction="sum") / as_count(tokens)
            expected += loss.item()
            loss.backward()
        assert taken(losses) == pytest.approx(expected, rel=1e-5)


def test_micro_batches_of_unequal_sizes_that_are_weighted_by_them_are_added(
    losses: BackwardLosses, model: torch.nn.Module
) -> None:
    """As Composer does: the last micro-batch is shorter."""
    for sizes in ((8, 8, 4), (8, 8, 8), (8, 3)):
        expected = 0.0
        for size in sizes:
            inputs, targets = batch(size)
            loss = F.cross_entropy(model(inputs), targets).mul(size / sum(sizes))
            expected += loss.item()
            loss.backward()
        assert taken(losses) == pytest.approx(expected, rel=1e-5)


def test_shares_of_few_valid_tokens_are_known_once_their_number_changes(
    losses: BackwardLosses, model: torch.nn.Module
) -> None:
    """With 1 valid token of 8, the tokens of the step are fewer than the elements of one micro-batch."""
    for step in range(4):
        batches = [batch(8, 8 - 1 - step % 2) for _ in range(2)]
        tokens = sum(int((targets != -100).sum()) for _, targets in batches)
        expected = 0.0
        for inputs, targets in batches:
            loss = F.cross_entropy(model(inputs), targets, reduction="sum") / tokens
            expected += loss.item()
            loss.backward()
        found = taken(losses)
        if step:
            assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("how", ["sum over its own elements", "weight", "weight that changes", "weight of a tensor"])
def test_what_is_no_count_of_the_step_stays(losses: BackwardLosses, model: torch.nn.Module, how: str) -> None:
    """The micro-batches' mean is reported, as they were given to backward."""
    weight = torch.tensor(0.3)
    for step in range(3):
        own = []
        for _ in range(2):
            inputs, targets = batch(8)
            if how == "sum over its own elements":
                loss = (model(inputs) ** 2).sum() / (8 * CLASSES)
            elif how == "weight that changes":
                loss = F.cross_entropy(model(inputs), targets) / (2.5 + step / 7)
            elif how == "weight":
                loss = F.cross_entropy(model(inputs), targets) / 2.5
            else:
                loss = F.cross_entropy(model(inputs), targets) * weight
            own.append(loss.item())
            loss.backward()
        assert taken(losses) == pytest.approx(sum(own) / 2, rel=1e-5)


def test_a_mean_that_the_script_makes_itself_is_divided_by_the_micro_batches_too(
    losses: BackwardLosses, model: torch.nn.Module
) -> None:
    """A masked mean ends with a division as well: only the last one is by the number of micro-batches."""
    for count in (4, 4, 3):
        own = []
        for _ in range(count):
            inputs, targets = batch(8)
            mask = torch.rand(8) < 0.7
            mask[0] = True
            loss = (F.cross_entropy(model(inputs), targets, reduction="none") * mask).sum() / mask.sum()
            own.append(loss.item())
            (loss / 4).backward()
        assert taken(losses) == pytest.approx(sum(own) / count, rel=1e-5)


@pytest.mark.parametrize("how", ["mean", "the script's own mean"])
def test_a_division_by_micro_batches_is_none_by_tokens_where_batches_are_small(
    losses: BackwardLosses, model: torch.nn.Module, how: str
) -> None:
    """Two samples in each, four micro-batches: four is more than the elements of one, and counts no elements."""
    for count in (4, 4, 3):
        own = []
        for _ in range(count):
            inputs, targets = batch(2)
            loss = F.cross_entropy(model(inputs), targets, reduction="mean" if how == "mean" else "sum")
            loss = loss if how == "mean" else loss / 2
            own.append(loss.item())
            (loss / 4).backward()
        assert taken(losses) == pytest.approx(sum(own) / count, rel=1e-5)


@NUMBERS
@pytest.mark.parametrize("factor", [-1, 0])
def test_a_sign_or_a_flag_is_no_number_of_tokens(
    losses: BackwardLosses,
    model: torch.nn.Module,
    as_count: Callable[[torch.Tensor], int | torch.Tensor],
    factor: int,
) -> None:
    """What is maximised is multiplied by -1, a batch that does not count by 0: neither gives another sign, or a NaN."""
    inputs, targets = batch(8)
    loss = as_count(torch.tensor(factor)) * F.cross_entropy(model(inputs), targets)
    loss.backward()
    assert taken(losses) == pytest.approx(loss.item(), rel=1e-6)


def test_what_hooks_keep_is_left_to_the_backward_pass(losses: BackwardLosses, model: torch.nn.Module) -> None:
    """Offloading gives a saved tensor back only once."""
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> int:
        kept[len(kept)] = tensor
        return len(kept) - 1

    inputs, targets = batch(8)
    with saved_tensors_hooks(pack, lambda place: kept.pop(place)):
        loss = F.cross_entropy(model(inputs), targets, reduction="sum") / (targets != -100).sum()
    loss.backward()
    assert taken(losses) == pytest.approx(loss.item(), rel=1e-6)
    assert model.weight.grad is not None


def test_a_checkpointed_loss_is_not_computed_once_more(losses: BackwardLosses, model: torch.nn.Module) -> None:
    calls = []

    def a_loss(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        calls.append(len(inputs))
        return F.cross_entropy(model(inputs), targets, reduction="sum") / (targets != -100).sum()

    loss = checkpoint(a_loss, *batch(8), use_reentrant=False)
    loss.backward()
    assert calls == [8, 8], "the forward pass, and once more in the backward pass"
    assert taken(losses) == pytest.approx(loss.item(), rel=1e-6)
