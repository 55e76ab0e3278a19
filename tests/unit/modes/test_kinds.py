"""The table of what a mode changes, against what the modules do when they are run in both modes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from torchtap.modes import kinds
from torchtap.modes.kinds import what_mode_changes

IMAGE = (4, 3, 5, 5)
SEQUENCE = (4, 3, 6)
# (a module, a shape it takes): every class of torch.nn that reads its mode, and the same without anything to change
CASES: list[tuple[Callable[[], nn.Module], tuple[int, ...]]] = [
    (lambda: nn.Dropout(0.5), SEQUENCE),
    (lambda: nn.Dropout(0.0), SEQUENCE),
    (lambda: nn.Dropout1d(0.5), SEQUENCE),
    (lambda: nn.Dropout2d(0.5), IMAGE),
    (lambda: nn.Dropout3d(0.5), (2, 3, 2, 2, 2)),
    (lambda: nn.AlphaDropout(0.5), SEQUENCE),
    (lambda: nn.FeatureAlphaDropout(0.5), IMAGE),
    (lambda: nn.BatchNorm1d(3), SEQUENCE),
    (lambda: nn.BatchNorm2d(3), IMAGE),
    (lambda: nn.BatchNorm2d(3, track_running_stats=False), IMAGE),
    (lambda: nn.InstanceNorm2d(3), IMAGE),
    (lambda: nn.InstanceNorm2d(3, track_running_stats=True), IMAGE),
    (nn.RReLU, SEQUENCE),
    (lambda: nn.RReLU(0.2, 0.2), SEQUENCE),
    (lambda: nn.LSTM(6, 4, 2, dropout=0.5), SEQUENCE),
    (lambda: nn.GRU(6, 4, 2, dropout=0.5), SEQUENCE),
    (lambda: nn.Linear(6, 2), SEQUENCE),
    (lambda: nn.LayerNorm(6), SEQUENCE),
    (lambda: nn.GroupNorm(1, 3), IMAGE),
    (lambda: nn.Sequential(nn.ReLU()), SEQUENCE),
]


@pytest.mark.parametrize(("make", "shape"), CASES, ids=[repr(make()) for make, _ in CASES])
def test_the_table_says_so_exactly_where_outputs_differ(
    make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    """Train and eval outputs from one seed differ if and only if the table names a change."""
    module, x = make(), torch.randn(shape)

    def run(train: bool) -> Tensor:
        torch.manual_seed(1)
        out = module.train(train)(x)
        first: Tensor = out[0] if isinstance(out, tuple) else out
        return first.detach().clone()

    evaluated = run(False)  # first: the running statistics are still the initial ones
    assert (what_mode_changes(module) != "") is (not torch.equal(run(True), evaluated))


@pytest.mark.parametrize("module", [nn.LSTM(4, 3), nn.GRU(4, 3), nn.RNN(4, 3, dropout=0.0, num_layers=2)])
def test_every_rnn_has_its_reserve_even_without_dropout(module: nn.Module) -> None:
    assert what_mode_changes(module) == "train: cuDNN's reserve"


def test_numbers_come_from_the_module() -> None:
    assert (
        what_mode_changes(nn.LSTM(4, 3, 2, dropout=0.25))
        == "train: dropout between layers (p=0.25), cuDNN's reserve"
    )
    assert what_mode_changes(nn.RReLU(0.1, 0.4)) == "train: random slope (0.1 to 0.4)"
    assert what_mode_changes(nn.MultiheadAttention(4, 2, dropout=0.5)).startswith(
        "train: attention dropout (p=0.5)"
    )


def test_a_class_whose_forward_reads_its_mode_is_noticed() -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x, 0.5, training=self.training)

    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    assert what_mode_changes(Own()) == "its forward reads self.training"
    assert what_mode_changes(Plain()) == ""


def test_lazy_modules_can_be_asked_before_they_know_their_size() -> None:
    assert "batch statistics" in what_mode_changes(nn.LazyBatchNorm1d())


def all_below(cls: type[nn.Module]) -> set[type[nn.Module]]:
    return {cls}.union(*(all_below(each) for each in cls.__subclasses__()))


OF_TORCH = [each for each in all_below(nn.Module) if each.__module__.startswith("torch.nn.modules")]


@pytest.mark.parametrize("cls", sorted(OF_TORCH, key=str), ids=lambda each: each.__name__)
def test_the_table_has_every_class_of_torch_nn_that_reads_its_mode(cls: type[nn.Module]) -> None:
    """By the names in the bytecode of their methods, in whatever release of PyTorch this runs on."""
    own = [each for name, each in vars(cls).items() if name not in ("train", "eval", "__init__")]
    codes = [each.__code__ for each in own if hasattr(each, "__code__")]
    if any("training" in code.co_names for code in codes) and cls is not nn.Module:
        assert issubclass(cls, kinds._IN_TABLE)


def test_spectral_norm_moves_its_vectors_in_train_mode() -> None:
    old = nn.utils.spectral_norm(nn.Linear(3, 3))
    new = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
    assert what_mode_changes(old) == kinds.SPECTRAL_NORM
    assert [each for each in map(what_mode_changes, new.modules()) if each] == [
        "its forward reads self.training"
    ]
    for module in (old, new):
        module.eval()
        x, before = torch.ones(2, 3), [buffer.clone() for buffer in module.buffers()]
        module(x)
        assert all(map(torch.equal, module.buffers(), before))
        module.train()
        module(x)
        assert not all(map(torch.equal, module.buffers(), before))


def test_quantised_modules_do_in_both_modes_what_eval_does() -> None:
    from torch.ao.nn import quantized

    for module in (quantized.Dropout(0.5), quantized.BatchNorm2d(3)):
        assert what_mode_changes(module) == ""


def test_a_method_that_forward_calls_is_read_too() -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return self.step(x)

        def step(self, x: Tensor) -> Tensor:
            return x if self.training else -x

    class Inherits(Own):
        pass

    assert what_mode_changes(Inherits()) == "its forward reads self.training"


def test_a_subclass_with_a_forward_of_its_own_is_read_where_the_table_says_nothing() -> None:
    class Always(nn.Dropout):
        def forward(self, x: Tensor) -> Tensor:
            return x if self.training else -x

    assert what_mode_changes(Always(0.0)) == "its forward reads self.training"
    assert what_mode_changes(nn.Dropout(0.0)) == ""


@pytest.mark.parametrize("p", [None, "0.5"])
def test_what_cannot_be_read_is_said_and_never_raises(p: object) -> None:
    module = nn.Dropout()
    module.p = p  # type: ignore[assignment]
    assert what_mode_changes(module) == f"cannot be read: p={p!r}"
    del module.p
    assert what_mode_changes(module) == "cannot be read: an attribute of its class is missing"
