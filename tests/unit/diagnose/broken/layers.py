"""Faults in the model: initialisation, activations, normalisation, attention, cuts in the graph."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.unit.diagnose.healthy.supervised import Encoder, LanguageModel, Mnist, resnet
from tests.unit.diagnose.training import broken, classes, fit, images, mlp, numbers, text, token_loss
from torchtap.monitor._watch import Watch


def _sgd(model: nn.Module, lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


@broken("relu.dead")
def dead_by_bias() -> Watch:
    """Biases begin at -20, so no ReLU ever opens."""
    model = mlp(20, 64, 64, 4)
    nn.init.constant_(model[0].bias, -20.0)
    return fit(model, classes(), optimizer=_sgd(model))


@broken("relu.dead")
def dead_functional_relu() -> Watch:
    """As above with F.relu, which no hook sees."""
    model = Mnist()
    nn.init.constant_(model.fc1.bias, -30.0)
    return fit(model, images(), functional.nll_loss, optimizer=_sgd(model, 0.01))


@broken("relu.dead")
def dead_convolution() -> Watch:
    """A convolution whose outputs are all negative before ReLU."""
    model: Any = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 4)
    )
    nn.init.constant_(model[2].bias, -15.0)
    return fit(model, images(), optimizer=_sgd(model, 0.01))


@broken("init.too_wide")
def too_wide_weights() -> Watch:
    """B11: weights of deviation 1 in a ReLU network; the loss does not fall."""
    model = mlp(20, 128, 128, 128, 128, 4)
    for each in model:
        if isinstance(each, nn.Linear):
            nn.init.normal_(each.weight)
    return fit(model, classes(), optimizer=_sgd(model, 0.01))


@broken("init.too_wide", "activation.saturated")
def saturated_tanh() -> Watch:
    """Deep tanh network with wide weights."""
    model = mlp(20, 64, 64, 64, 64, 4, activation=nn.Tanh)
    for each in model[:-1]:
        if isinstance(each, nn.Linear):
            nn.init.normal_(each.weight, std=2.0)
    return fit(model, classes(), optimizer=_sgd(model, 1e-3))


@broken("activation.saturated", "input.unscaled")
def saturated_by_inputs() -> Watch:
    """Bytes of an image into sigmoid units."""
    model = mlp(144, 64, 64, 4, activation=nn.Sigmoid)
    data = images()

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x, y = data(step)
        return (x.flatten(1) * 40 + 128).clamp(0, 255), y

    return fit(model, batch, optimizer=_sgd(model, 0.01))


@broken("gradient.vanishing")
def vanishing_in_sigmoids() -> Watch:
    """Ten sigmoid layers."""
    model = mlp(20, *[32] * 10, 4, activation=nn.Sigmoid)
    return fit(model, classes(), optimizer=_sgd(model, 0.01))


@broken("gradient.vanishing", "init.too_small")
def vanishing_in_tanh() -> Watch:
    """Twenty tanh layers with narrow weights."""
    model = mlp(20, *[32] * 20, 4, activation=nn.Tanh)
    for each in model:
        if isinstance(each, nn.Linear):
            nn.init.normal_(each.weight, std=0.05)
    return fit(model, classes(), optimizer=_sgd(model, 0.01))


@broken("init.too_small", "activation.vanishing")
def too_small_weights() -> Watch:
    """Weights of deviation 1e-4 in a ReLU network."""
    model = mlp(20, 64, 64, 64, 64, 4)
    for each in model:
        if isinstance(each, nn.Linear):
            nn.init.normal_(each.weight, std=1e-4)
            nn.init.zeros_(each.bias)
    return fit(model, classes(), optimizer=_sgd(model, 0.01))


@broken("activation.exploding", "init.too_wide")
def exploding_activations() -> Watch:
    """A deep network without normalisation, gain 4 in each layer."""
    model = mlp(20, *[64] * 8, 1)
    for each in model:
        if isinstance(each, nn.Linear):
            nn.init.normal_(each.weight, std=6 / math.sqrt(each.in_features))
    return fit(model, numbers(20), functional.mse_loss, optimizer=_sgd(model, 1e-9))


@broken("parameter.equal_units")
def constant_initialisation() -> Watch:
    """All weights of the hidden layers are 0.01."""
    model = mlp(20, 64, 64, 4)
    for place in (0, 2, 4):
        nn.init.constant_(model[place].weight, 0.01)
        nn.init.zeros_(model[place].bias)
    return fit(model, classes(), optimizer=_sgd(model))


@broken("parameter.equal_units")
def zero_initialisation() -> Watch:
    """All weights are 0."""
    model = mlp(20, 64, 64, 4)
    for each in model.parameters():
        nn.init.zeros_(each)
    return fit(model, classes(), optimizer=_sgd(model))


@broken("batchnorm.tiny_batch")
def batch_norm_of_two_rows() -> Watch:
    """BatchNorm1d with two rows a batch."""
    model = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    return fit(model, classes(rows=2))


@broken("batchnorm.tiny_batch")
def batch_norm_of_one_image() -> Watch:
    """BatchNorm2d with one small image a batch."""
    return fit(resnet(2), images(rows=1))


@broken("batchnorm.mismatch")
def batch_norm_that_never_learns() -> Watch:
    """Running values with momentum 0.0005."""
    model = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32, momentum=0.0005), nn.ReLU(), nn.Linear(32, 4))
    data = classes()
    return fit(model, lambda step: ((each := data(step))[0] * 5 + 8, each[1]))


@broken("batchnorm.momentum")
def batch_norm_momentum_of_another_library() -> Watch:
    """momentum=0.99."""
    return fit(resnet(2, lambda width: nn.BatchNorm2d(width, momentum=0.99)), images())


@broken("layernorm.below_eps")
def layer_norm_of_nothing() -> Watch:
    """Fixed embeddings of deviation 1e-4 into LayerNorm."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(30, 32)
            nn.init.normal_(self.embedding.weight, std=1e-4).requires_grad_(False)
            self.norm = nn.LayerNorm(32)
            self.head = nn.Linear(32, 30)

        def forward(self, tokens: Tensor) -> Any:
            return self.head(self.norm(self.embedding(tokens)))

    model = Net()
    return fit(model, text(), token_loss, optimizer=torch.optim.SGD(model.parameters(), lr=1e-4))


@broken("attention.collapse", "init.too_wide")
def attention_to_one_key() -> Watch:
    """Projections of attention twenty times too wide."""
    model = Encoder(causal=False)
    for layer in model.encoder.layers:
        nn.init.normal_(layer.self_attn.in_proj_weight, std=3.0)
    return fit(model, text(), token_loss, optimizer=torch.optim.SGD(model.parameters(), lr=1e-3))


@broken("softmax.one_choice")
def attention_without_scale() -> Watch:
    """Own attention: scores of wide vectors, not divided by sqrt(width)."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(16, 256) for _ in range(3))
            self.softmax = nn.Softmax(dim=-1)
            self.head = nn.Linear(256, 4)

        def forward(self, x: Tensor) -> Any:
            scores = self.q(x) @ self.k(x).transpose(1, 2)
            return self.head((self.softmax(scores) @ self.v(x)).mean(1))

    centres = torch.randn(4, 16)

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(4, (16,))
        return 6 * (centres[y][:, None] + torch.randn(16, 10, 16)), y

    model = Net()
    return fit(model, batch, optimizer=torch.optim.SGD(model.parameters(), lr=1e-3))


@broken("parameter.no_gradient")
def detached_encoder() -> Watch:
    """.detach() between encoder and head."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = mlp(20, 32, 32)
            self.head = nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Any:
            return self.head(self.encoder(x).detach())

    return fit(Net(), classes())


@broken("parameter.no_gradient")
def head_not_in_the_loss() -> Watch:
    """Two heads, and the loss of one is forgotten."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = mlp(20, 32, 32)
            self.kind, self.size = nn.Linear(32, 4), nn.Linear(32, 1)

        def forward(self, x: Tensor) -> Any:
            hidden = functional.relu(self.trunk(x))
            return self.kind(hidden), self.size(hidden)

    return fit(Net(), classes(), lambda output, y: functional.cross_entropy(output[0], y))


@broken("parameter.unused")
def layer_never_called() -> Watch:
    """A layer that forward() forgets."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.forgotten, self.last = nn.Linear(20, 32), nn.Linear(32, 32), nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Any:
            return self.last(functional.relu(self.first(x)))

    return fit(Net(), classes())


@broken("parameter.frozen_inside")
def frozen_head() -> Watch:
    """The new head is frozen in place of the backbone."""
    model = mlp(20, 64, 64, 4)
    model[-1].requires_grad_(False)
    return fit(model, classes())


@broken("embedding.untouched")
def all_words_unknown() -> Watch:
    """A tokenizer that maps every word to 0."""
    data = text()

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x, y = data(step)
        return torch.zeros_like(x), y

    return fit(LanguageModel(layers=1), batch, token_loss)


@broken("dropout.nearly_all")
def dropout_by_probability_to_keep() -> Watch:
    """p=0.98 in each layer."""
    model = nn.Sequential(
        nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.98), nn.Linear(32, 32), nn.ReLU(), nn.Dropout(0.98), nn.Linear(32, 4)
    )  # fmt: skip
    return fit(model, classes(), optimizer=_sgd(model, 0.01))


@broken("parameter.copied_not_tied")
def head_copied_not_tied() -> Watch:
    """The embedding's values are copied into the head."""
    model = LanguageModel(layers=1)
    with torch.no_grad():
        model.head.weight.copy_(model.embedding.weight)
    return fit(model, text(), token_loss)


@broken("parameter.shared_storage")
def head_tied_by_data() -> Watch:
    """head.weight.data = embedding.weight.data: two parameters, one memory."""
    model = LanguageModel(layers=1)
    model.head.weight.data = model.embedding.weight.data
    return fit(model, text(), token_loss)


@broken("output.constant")
def mean_over_the_batch() -> Watch:
    """A reduction over dim=0: every row gets the batch's mean."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(20, 32), nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Any:
            hidden = functional.relu(self.first(x))
            return self.last(hidden.mean(0, keepdim=True).expand_as(hidden))

    return fit(Net(), classes())
