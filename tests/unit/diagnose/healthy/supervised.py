"""Networks with a teacher."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.unit.diagnose.training import classes, fit, healthy, images, mlp, numbers, text, token_loss
from torchtap.monitor._watch import Watch


@healthy
def mlp_on_clusters() -> Watch:
    """MLP, Adam."""
    return fit(mlp(20, 64, 64, 4), classes())


@healthy
def mlp_with_sgd() -> Watch:
    """MLP, SGD with momentum."""
    model = mlp(20, 64, 64, 4)
    return fit(
        model, classes(), optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), steps=100
    )


class Mnist(nn.Module):
    """As in pytorch/examples: functional activations, dropout, log_softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(16 * 16, 32)
        self.fc2 = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Any:
        x = functional.relu(self.conv1(x))
        x = functional.relu(self.conv2(x))
        x = self.dropout1(functional.max_pool2d(x, 2))
        x = self.dropout2(functional.relu(self.fc1(torch.flatten(x, 1))))
        return functional.log_softmax(self.fc2(x), dim=1)


@healthy
def mnist() -> Watch:
    """CNN with functional ReLU, dropout and nll_loss; Adadelta and StepLR by epochs."""
    model = Mnist()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    return fit(
        model,
        images(),
        functional.nll_loss,
        optimizer=optimizer,
        steps=80,
        after=lambda step: schedule.step() if step % 20 == 19 else None,
    )


class Block(nn.Module):
    """Residual, with batch norm and ReLU in place."""

    def __init__(self, width: int, norm: Any = nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = norm(width)

    def forward(self, x: Tensor) -> Any:
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + x)


def resnet(blocks: int = 3, norm: Any = nn.BatchNorm2d, width: int = 12, *, zero: bool = False) -> nn.Module:
    """For images of one channel, four classes."""
    model = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        norm(width),
        nn.ReLU(inplace=True),
        *(Block(width, norm) for _ in range(blocks)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 4),
    )
    for each in model.modules():
        if zero and isinstance(each, Block):
            nn.init.zeros_(each.bn2.weight)
    return model


@healthy
def residual_network() -> Watch:
    """ResNet with batch norm, SGD with momentum and weight decay, residual branches that begin at 0."""
    model = resnet(zero=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    return fit(model, images(), optimizer=optimizer)


@healthy
def small_batches_with_group_norm() -> Watch:
    """ResNet with group norm, two images a batch."""
    model = resnet(2, lambda width: nn.GroupNorm(4, width))
    return fit(model, images(rows=2), optimizer=torch.optim.Adam(model.parameters(), lr=1e-3), steps=100)


class LanguageModel(nn.Module):
    """LSTM over tokens."""

    def __init__(self, vocabulary: int = 30, width: int = 32, *, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, layers, batch_first=True, dropout=0.2 if layers > 1 else 0.0)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Any:
        return self.head(self.rnn(self.embedding(tokens))[0])


@healthy
def lstm_language_model() -> Watch:
    """Two-layer LSTM with dropout, clipped gradients."""
    model = LanguageModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def clip(*_: object) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)

    optimizer.register_step_pre_hook(clip)
    return fit(model, text(), token_loss, optimizer=optimizer)


class Encoder(nn.Module):
    """Transformer encoder over tokens; the mask makes it a decoder-only language model."""

    def __init__(
        self, vocabulary: int = 30, width: int = 32, *, causal: bool = True, norm_first: bool = True
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(64, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        self.causal = causal

    def forward(self, tokens: Tensor) -> Any:
        length = tokens.shape[1]
        x = self.embedding(tokens) + self.position(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length) if self.causal else None
        return self.head(self.encoder(x, mask=mask, is_causal=self.causal))


@healthy
def transformer_decoder() -> Watch:
    """Decoder-only transformer, pre-norm, AdamW with warm-up and cosine to 0."""
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 10, 1.0))
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 70)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [10])
    return fit(model, text(), token_loss, optimizer=optimizer, steps=80, after=lambda _: schedule.step())


@healthy
def transformer_encoder() -> Watch:
    """Encoder, post-norm, bidirectional, to reverse its input by position."""
    model = Encoder(causal=False, norm_first=False)

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        x = torch.randint(30, (8, 12))
        return x, x.flip(1)

    return fit(model, batch, token_loss, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3), steps=100)


class Translation(nn.Module):
    """Encoder and decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 32)
        self.transformer = nn.Transformer(32, 4, 1, 1, 64, batch_first=True)
        self.head = nn.Linear(32, 20)

    def forward(self, pair: tuple[Tensor, Tensor]) -> Any:
        source, target = pair
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.head(self.transformer(self.embedding(source), self.embedding(target), tgt_mask=mask))


@healthy
def translation() -> Watch:
    """nn.Transformer that copies its source."""

    def batch(_step: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        x = torch.randint(1, 20, (8, 9))
        return (x, torch.cat([torch.zeros(8, 1, dtype=torch.long), x[:, :-1]], 1)), x

    model = Translation()
    return fit(model, batch, token_loss, optimizer=torch.optim.Adam(model.parameters(), lr=2e-3))


class Graph(nn.Module):
    """GCN: two layers over one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16, bias=False)
        self.dropout = nn.Dropout(0.5)
        self.second = nn.Linear(16, 3, bias=False)

    def forward(self, given: tuple[Tensor, Tensor]) -> Any:
        x, adjacency = given
        hidden = functional.relu(adjacency @ self.first(x))
        return adjacency @ self.second(self.dropout(hidden))


@healthy
def graph_network() -> Watch:
    """GCN: the same whole graph in every step."""
    y = torch.randint(3, (120,))
    x = torch.randn(3, 16)[y] + torch.randn(120, 16)
    links = (torch.rand(120, 120) < torch.where(y[:, None] == y, 0.1, 0.01)).float() + torch.eye(120)
    adjacency = links / links.sum(1, keepdim=True)
    model = Graph()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    return fit(model, lambda _: ((x, adjacency), y), optimizer=optimizer)


@healthy
def siamese() -> Watch:
    """One network on both of a pair; contrastive loss."""

    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(20, 32, 8)

        def forward(self, pair: tuple[Tensor, Tensor]) -> Any:
            return (self.net(pair[0]) - self.net(pair[1])).norm(dim=1)

    data = classes()

    def batch(step: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        (x, a), (z, b) = data(step), data(step)
        return (x, z), (a == b).float()

    def contrastive(distance: Tensor, same: Tensor) -> Tensor:
        return (same * distance**2 + (1 - same) * functional.relu(2 - distance) ** 2).mean()

    return fit(Siamese(), batch, contrastive)


@healthy
def super_resolution() -> Watch:
    """ESPCN: orthogonal start, pixel shuffle, MSE."""
    model: Any = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 4, 3, padding=1),
        nn.PixelShuffle(2),
    )
    for place in (0, 2):
        nn.init.orthogonal_(model[place].weight, nn.init.calculate_gain("relu"))

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        y = functional.interpolate(torch.rand(8, 1, 4, 4), size=(16, 16), mode="bilinear")
        return functional.avg_pool2d(y, 2), y

    return fit(model, batch, functional.mse_loss, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3))


@healthy
def sparse_embeddings() -> Watch:
    """Matrix factorisation with sparse gradients and SparseAdam."""

    class Factors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users = nn.Embedding(50, 8, sparse=True)
            self.items = nn.Embedding(60, 8, sparse=True)
            for each in (self.users, self.items):
                nn.init.normal_(each.weight, std=0.3)

        def forward(self, pair: tuple[Tensor, Tensor]) -> Any:
            return (self.users(pair[0]) * self.items(pair[1])).sum(1)

    users, items = torch.randn(50, 3), torch.randn(60, 3)

    def batch(_step: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        u, i = torch.randint(50, (128,)), torch.randint(60, (128,))
        return (u, i), (users[u] * items[i]).sum(1)

    model = Factors()
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.02)
    return fit(model, batch, functional.mse_loss, optimizer=optimizer, steps=120)


@healthy
def regression_of_large_targets() -> Watch:
    """Targets of 250,000, normalised."""
    data = numbers()

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x, y = data(step)
        price = 250_000 + 80_000 * y
        return x, (price - 250_000) / 80_000

    return fit(mlp(10, 32, 1), batch, functional.mse_loss)


@healthy
def multi_task() -> Watch:
    """One trunk, two heads, two losses."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = mlp(20, 32, 32)
            self.kind = nn.Linear(32, 4)
            self.size = nn.Linear(32, 1)

        def forward(self, x: Tensor) -> Any:
            hidden = functional.relu(self.trunk(x))
            return self.kind(hidden), self.size(hidden)

    def both(output: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        return functional.cross_entropy(output[0], y) + 0.1 * functional.mse_loss(output[1][:, 0], y.float())

    return fit(Two(), classes(), both)


@healthy
def label_smoothing() -> Watch:
    """Cross entropy with label smoothing, GELU and layer norm."""
    model = nn.Sequential(
        nn.Linear(20, 64),
        nn.LayerNorm(64),
        nn.GELU(),
        nn.Linear(64, 64),
        nn.LayerNorm(64),
        nn.GELU(),
        nn.Linear(64, 4),
    )
    return fit(model, classes(), lambda logits, y: functional.cross_entropy(logits, y, label_smoothing=0.1))


@healthy
def sigmoid_units() -> Watch:
    """Binary classification, tanh inside, sigmoid and BCE at the end: sure of itself in the end."""
    model = nn.Sequential(
        nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1), nn.Sigmoid()
    )
    data = classes(number=2, spread=0.5)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x, y = data(step)
        return x, y.float()[:, None]

    return fit(model, batch, functional.binary_cross_entropy, steps=120)


@healthy
def deep_linear_network() -> Watch:
    """Six linear layers without activations, regression."""
    model: Any = nn.Sequential(*(nn.Linear(16, 16) for _ in range(5)), nn.Linear(16, 1))
    for each in model:
        nn.init.orthogonal_(each.weight)
    weight = torch.randn(16, 1) / 4

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(32, 16)
        return x, x @ weight

    return fit(
        model, batch, functional.mse_loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.02), steps=100
    )


@healthy
def deep_residual_mlp() -> Watch:
    """Twelve pre-norm residual blocks."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(32)
            self.up = nn.Linear(32, 64)
            self.down = nn.Linear(64, 32)

        def forward(self, x: Tensor) -> Any:
            return x + self.down(functional.gelu(self.up(self.norm(x))))

    model = nn.Sequential(
        nn.Linear(20, 32), *(Residual() for _ in range(12)), nn.LayerNorm(32), nn.Linear(32, 4)
    )
    return fit(model, classes(), optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3))


@healthy
def conv1d_on_waves() -> Watch:
    """Conv1d with batch norm over sequences."""
    model = nn.Sequential(
        nn.Conv1d(1, 16, 5, padding=2),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(16, 16, 5, padding=2),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(16, 3),
    )

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(3, (32,))
        time = torch.linspace(0, 6.28, 32)
        return torch.sin((y[:, None] * 2 + 1) * time + torch.rand(32, 1))[:, None] + 0.3 * torch.randn(
            32, 1, 32
        ), y

    return fit(model, batch)


@healthy
def gru_classifier() -> Watch:
    """GRU over sequences of vectors, the last state classified."""

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(8, 32, batch_first=True)
            self.head = nn.Linear(32, 3)

        def forward(self, x: Tensor) -> Any:
            return self.head(self.rnn(x)[1][-1])

    centres = torch.randn(3, 8)

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(3, (32,))
        return centres[y][:, None] * 0.5 + torch.randn(32, 12, 8), y

    return fit(Classifier(), batch)
