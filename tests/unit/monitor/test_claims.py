"""Claims B11 and B12, of dead ReLUs and of BatchNorm under DDP: what is true. docs/claims.md names these tests.

What ranks do together is run by on_ranks.py, see test_distributed.py; SyncBatchNorm itself waits for GPUs.
"""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.unit.monitor.test_distributed import torchrun
from torchtap import watch

# B11: the loss does not fall because ReLU outputs are zero


def task(*, pixels: float = 1.0) -> tuple[Tensor, Tensor]:
    """Inputs [256, 16] from 0 to `pixels`, and what to tell from them."""
    x = torch.rand(256, 16, generator=torch.Generator().manual_seed(0))
    target = x[:, :8].mean(1, keepdim=True) - x[:, 8:].mean(1, keepdim=True)
    return x * pixels, target / target.std()


def network(std: float | None = None) -> nn.Sequential:
    """Weights from a normal distribution of this width; None: Kaiming's."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    for layer in net:
        if isinstance(layer, nn.Linear):
            if std is None:
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            else:
                nn.init.normal_(layer.weight, std=std)
            nn.init.zeros_(layer.bias)
    return net


@dataclass(frozen=True)
class Trained:
    losses: list[float]
    zeros: list[list[float]]
    """Of each ReLU: the fraction of its outputs that are 0, at the first and at the last of the watched steps."""
    gradient: float
    """Norm of the first layer's, at the last step."""
    net: nn.Sequential


def train(net: nn.Sequential, data: tuple[Tensor, Tensor], steps: int = 300) -> Trained:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    with watch(net, optimizer, zeros=True) as w:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = nn.functional.smooth_l1_loss(net(data[0]), data[1])
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
    series = [w.series(name)["zeros"] for name in ("1", "3")]
    zeros = [each[~np.isnan(each)] for each in series]  # without the C kernel, counted in each tenth step
    first: Tensor = net[0].weight.grad  # type: ignore[assignment]
    return Trained(losses, [[float(each[0]), float(each[-1])] for each in zeros], float(first.norm()), net)


def falls(trained: Trained) -> bool:
    """To less than a tenth of what a network that gives one number reaches."""
    return trained.losses[-1] < 0.04


def is_dead(trained: Trained) -> bool:
    """All outputs of the first ReLU are 0, nearly all of the second; no gradient comes through; the loss is flat."""
    flat = abs(trained.losses[-1] - trained.losses[100]) < 0.01
    return flat and trained.gradient == 0 and trained.zeros[0][-1] == 1 and trained.zeros[1][-1] > 0.95


def test_b11_with_weights_that_are_too_wide_the_first_steps_kill_all_units_and_kaiming_cures_it() -> None:
    assert is_dead(train(network(std=3.0), task()))
    assert falls(train(network(), task()))


def test_b11_wide_weights_by_themselves_make_no_more_zeros_than_kaimings() -> None:
    """Half of the outputs are 0 before the first step in both: what differs is the size of the first step."""
    one, other = train(network(std=3.0), task(), 1), train(network(), task(), 1)
    for wide, kaiming in zip(one.zeros, other.zeros, strict=True):
        assert wide[0] == kaiming[0]
        assert 0.4 < wide[0] < 0.6
    assert one.losses[0] > 1000 * other.losses[0]


def test_b11_where_the_inputs_are_too_large_kaiming_does_not_help_and_scaling_them_does() -> None:
    """Pixels from 0 to 255: Kaiming keeps the size of what comes in."""
    data = task(pixels=255)
    trained = train(network(), data)
    assert not falls(trained)
    assert trained.losses[-1] > 0.4
    assert max(last for _, last in trained.zeros) == 1
    assert falls(train(network(), (data[0] / 255, data[1])))


def test_b11_what_is_dead_stays_so_until_it_is_initialised_anew() -> None:
    """No gradient reaches it: a smaller learning rate or more steps change nothing."""
    dead = train(network(std=3.0), task()).net
    before = [each.clone() for each in dead[0].parameters()]
    assert is_dead(train(dead, task()))
    assert all(torch.equal(a, b) for a, b in zip(dead[0].parameters(), before, strict=True))
    dead.load_state_dict(network().state_dict())
    assert falls(train(dead, task()))


# B12: NaN on some ranks from BatchNorm with a small batch

EQUAL = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
NEAR = torch.tensor([[1.0, 2.0], [1.001, 2.002]])
CLOSE_TO_ALL = torch.float32, torch.bfloat16


def finite(x: Tensor, eps: float, dtype: torch.dtype, scale: float = 1.0) -> tuple[bool, bool]:
    """Whether outputs and the gradient of the input are, in train mode; `scale`: of the loss, as a GradScaler's."""
    x = x.detach().clone().to(dtype).requires_grad_()
    output = nn.BatchNorm1d(x.shape[1], eps=eps).to(dtype)(x)
    (output.float() * torch.arange(1.0, 1 + output.numel()).view_as(output) * scale).sum().backward()
    assert x.grad is not None
    return bool(output.isfinite().all()), bool(x.grad.isfinite().all())


def test_b12_one_value_a_channel_is_no_nan_but_an_error() -> None:
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        nn.BatchNorm1d(2)(torch.ones(1, 2))
    assert nn.BatchNorm2d(2)(torch.ones(1, 2, 3, 3)).isfinite().all(), "one image has more than one"


@pytest.mark.parametrize("eps", [1e-5, 1e-12, 1e-38])
@pytest.mark.parametrize("dtype", CLOSE_TO_ALL)
def test_b12_two_rows_give_finite_gradients_in_float32_and_bfloat16_also_if_equal(
    eps: float, dtype: torch.dtype
) -> None:
    """However small eps is: 0 and below is refused."""
    if dtype is torch.bfloat16 and eps == 1e-38:
        eps = 1e-30
    assert finite(EQUAL, eps, dtype) == (True, True)
    assert finite(NEAR, eps, dtype) == (True, True)


def test_b12_nearly_equal_rows_multiply_gradients_which_overflow_in_float16() -> None:
    """By up to 1 / sqrt(eps), 316: under a loss scale that is past 65504. Infinity then, and NaN in what follows."""
    assert finite(NEAR, 1e-5, torch.float16) == (True, True)
    assert finite(NEAR, 1e-5, torch.float16, scale=1024.0) == (True, False)
    apart = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    assert finite(apart, 1e-5, torch.float16, scale=1024.0) == (True, True)


def test_b12_equal_rows_with_a_tiny_eps_are_nan_in_float16() -> None:
    """1 / sqrt(1e-12) is a million: infinity in float16, times 0 is NaN, in the forward already."""
    assert finite(EQUAL, 1e-12, torch.float16) == (False, False)
    assert finite(EQUAL, 1e-5, torch.float16) == (True, True)


def test_b12_normalisation_written_by_hand_is_nan_earlier() -> None:
    """An eps of 1e-8 is 0 in float16; the standard deviation of one row is NaN in any type."""

    def by_hand(x: Tensor) -> Tensor:
        mean = x.mean(0)
        return (x - mean) / (((x - mean) ** 2).mean(0) + 1e-8).sqrt()

    assert by_hand(EQUAL).isfinite().all()
    assert by_hand(EQUAL.half()).isnan().all()
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert torch.ones(1, 2).std(0).isnan().all()


def test_b12_one_batch_of_all_ranks_mends_what_is_equal_on_one_rank_only() -> None:
    """What SyncBatchNorm computes is BatchNorm over the rows of all ranks, here together in one tensor."""
    elsewhere = EQUAL + 3
    assert finite(EQUAL, 1e-12, torch.float16) == (False, False)
    assert finite(torch.cat([EQUAL, elsewhere]), 1e-12, torch.float16) == (True, True)
    assert finite(torch.cat([EQUAL, EQUAL]), 1e-12, torch.float16) == (False, False), "a channel that is dead"


def test_b12_the_conversion_keeps_everything_else() -> None:
    """Each BatchNorm of 1, 2, 3 dimensions, nested too, with its weights and statistics; nothing else, and a new
    object where the model itself is one."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=1e-3), nn.Sequential(nn.BatchNorm1d(4)))
    net.append(nn.GroupNorm(2, 4)).append(nn.InstanceNorm2d(4))
    state = {name: each.clone() for name, each in net.state_dict().items()}
    made = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    assert made is net
    kinds = [type(module).__name__ for module in made.modules()]
    assert kinds == [
        "Sequential",
        "Conv2d",
        "SyncBatchNorm",
        "Sequential",
        "SyncBatchNorm",
        "GroupNorm",
        "InstanceNorm2d",
    ]
    assert made[1].eps == 1e-3
    assert all(torch.equal(state[name], each) for name, each in made.state_dict().items())
    one = nn.BatchNorm2d(4)
    assert nn.SyncBatchNorm.convert_sync_batchnorm(one) is not one


def test_b12_under_ddp(tmp_path: Path) -> None:
    """NaN of one rank is in the gradients of all ranks' parameters after averaging: `on some ranks` can only be said of
    what came before. SyncBatchNorm refuses tensors on a CPU as soon as there are ranks."""
    for rank, seen in enumerate(torchrun(tmp_path, 2, "batchnorm")):
        assert seen["batchnorm"]["output gradients are finite"] == (rank == 0)
        assert seen["batchnorm"]["parameters with nan"] == ["0.weight", "0.bias"]
        assert seen["batchnorm"]["first"] == [1]
        assert "expected input tensor to be on GPU" in seen["batchnorm"]["sync"]
