"""More networks that go well: each of a kind that a rule could mistake for broken."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.unit.diagnose.training import classes, fit, healthy, images, mlp, numbers, text, token_loss
from torchtap.monitor._watch import Watch


@healthy
def memorised_batch() -> Watch:
    """One random batch learned by heart, SGD."""
    x, y = torch.randn(64, 10), torch.randint(3, (64,))
    model = mlp(10, 64, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return fit(model, lambda _: (x, y), optimizer=optimizer, steps=100)


@healthy
def line_through_points() -> Watch:
    """nn.Linear(1, 1), SGD, all points in every step."""
    x = torch.linspace(-1, 1, 50)[:, None]
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return fit(model, lambda _: (x, 3 * x + 1), functional.mse_loss, optimizer=optimizer)


@healthy
def logistic_regression() -> Watch:
    """One layer, small steps."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return fit(model, images(), optimizer=optimizer, steps=100)


@healthy
def u_network() -> Watch:
    """Down, up, a skip connection; binary masks."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
            self.deep = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
            self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
            self.last = nn.Conv2d(16, 1, 1)

        def forward(self, x: Tensor) -> Any:
            down = self.down(x)
            up = self.up(self.deep(functional.max_pool2d(down, 2)))
            return self.last(torch.cat([down, up], 1))

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        mask = functional.interpolate((torch.rand(8, 1, 3, 3) > 0.6).float(), size=(12, 12))
        return mask + 0.5 * torch.randn(8, 1, 12, 12), mask

    return fit(Net(), batch, functional.binary_cross_entropy_with_logits)


@healthy
def vision_transformer() -> Watch:
    """Patches, a class token, positions made small, pre-norm blocks."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(1, 32, 4, stride=4)
            self.token = nn.Parameter(torch.zeros(1, 1, 32))
            self.position = nn.Parameter(torch.randn(1, 10, 32) * 0.02)
            layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, "gelu", batch_first=True, norm_first=True)
            self.blocks = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
            self.norm = nn.LayerNorm(32)
            self.head = nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Any:
            x = self.patch(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
            return self.head(self.norm(self.blocks(x))[:, 0])

    return fit(Net(), images(), optimizer=None)


@healthy
def own_attention() -> Watch:
    """nn.Softmax over scaled scores."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(30, 32)
            self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))
            self.softmax = nn.Softmax(dim=-1)
            self.head = nn.Linear(32, 30)

        def forward(self, tokens: Tensor) -> Any:
            x = self.embedding(tokens)
            return self.head(x + self.softmax(self.q(x) @ self.k(x).transpose(1, 2) / 32**0.5) @ self.v(x))

    return fit(Net(), text(), token_loss)


@healthy
def masked_language_model() -> Watch:
    """Padding, masked tokens, zero-padded embeddings, a key padding mask."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(32, 32, padding_idx=0)
            layer = nn.TransformerEncoderLayer(32, 2, 64, 0.1, "gelu", batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(32, 32)

        def forward(self, tokens: Tensor) -> Any:
            padding = tokens == 0
            return self.head(self.encoder(self.embedding(tokens), src_key_padding_mask=padding))

    data = text(30)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x = data(step)[0] + 1
        masked = torch.where(torch.rand(x.shape) < 0.2, 31, x)
        for row in range(0, len(x), 2):
            masked[row, 10:] = 0
        return masked, torch.where(masked == 31, x, -100)

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100)

    model = Net()
    return fit(model, batch, loss, optimizer=torch.optim.AdamW(model.parameters(), lr=2e-3), steps=80)


@healthy
def cells_in_a_loop() -> Watch:
    """nn.LSTMCell, step by step."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.LSTMCell(4, 24), nn.Linear(24, 1)

        def forward(self, x: Tensor) -> Any:
            h, c = torch.zeros(len(x), 24), torch.zeros(len(x), 24)
            for time in range(x.shape[1]):
                h, c = self.cell(x[:, time], (h, c))
            return self.head(h)

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(16, 12, 4)
        return x, x[..., :1].mean(1)

    return fit(Net(), batch, functional.mse_loss)


@healthy
def packed_sequences() -> Watch:
    """GRU over sequences of different lengths, packed."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.rnn, self.head = (
                nn.Embedding(30, 16),
                nn.GRU(16, 32, batch_first=True),
                nn.Linear(32, 2),
            )

        def forward(self, pair: tuple[Tensor, Tensor]) -> Any:
            tokens, lengths = pair
            packed = nn.utils.rnn.pack_padded_sequence(
                self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False
            )
            return self.head(self.rnn(packed)[1][-1])

    def batch(_step: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        tokens, lengths = torch.randint(1, 30, (16, 10)), torch.randint(4, 11, (16,))
        return (tokens, lengths), (tokens[:, 0] > 15).long()

    return fit(Net(), batch)


@healthy
def separable_convolutions() -> Watch:
    """MobileNet-like, ReLU6, depthwise."""

    def block(before: int, after: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(before, before, 3, padding=1, groups=before, bias=False),
            nn.BatchNorm2d(before),
            nn.ReLU6(),
            nn.Conv2d(before, after, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU6(),
        )

    model = nn.Sequential(
        block(1, 16), block(16, 16), block(16, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)
    )
    return fit(model, images(rows=8), optimizer=torch.optim.RMSprop(model.parameters(), lr=1e-3))


@healthy
def convolutional_gan() -> Watch:
    """DCGAN: narrow start of 0.02, batch norm, tanh at the end."""
    generator: Any = nn.Sequential(
        nn.ConvTranspose2d(8, 16, 3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(True),
        nn.ConvTranspose2d(16, 1, 4, 4),
        nn.Tanh(),
    )
    judge: Any = nn.Sequential(
        nn.Conv2d(1, 16, 4, 4), nn.LeakyReLU(0.2, True), nn.Flatten(), nn.Linear(144, 1), nn.Sigmoid()
    )
    for each in (*generator, *judge):
        if "Conv" in type(each).__name__:
            nn.init.normal_(each.weight, 0.0, 0.02)
    makes = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    judges = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.5, 0.999))
    with Watch(generator, makes) as watch:
        for _ in range(60):
            real = functional.interpolate(torch.rand(16, 1, 3, 3) * 2 - 1, size=(12, 12))
            judge.zero_grad()
            functional.binary_cross_entropy(judge(real), torch.ones(16, 1)).backward()
            fake = generator(torch.randn(16, 8, 1, 1))
            functional.binary_cross_entropy(judge(fake.detach()), torch.zeros(16, 1)).backward()
            judges.step()
            generator.zero_grad()
            loss = functional.binary_cross_entropy(judge(fake), torch.ones(16, 1))
            loss.backward()
            watch.log(loss=loss)
            makes.step()
    return watch


@healthy
def gradient_penalty() -> Watch:
    """WGAN-GP: the critic's loss has a second derivative and goes below 0."""
    generator, critic = mlp(8, 32, 2), mlp(2, 32, 32, 1, activation=lambda: nn.LeakyReLU(0.2))
    makes = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
    judges = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
    with Watch(critic, judges) as watch:
        for step in range(80):
            real, fake = torch.randn(32, 2) + 2, generator(torch.randn(32, 8)).detach()
            mixed = torch.lerp(real, fake, torch.rand(32, 1)).requires_grad_()
            (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
            loss = critic(fake).mean() - critic(real).mean() + 10 * ((slope.norm(dim=1) - 1) ** 2).mean()
            judges.zero_grad()
            loss.backward()
            watch.log(loss=loss)
            judges.step()
            if step % 5 == 4:
                makes.zero_grad()
                (-critic(generator(torch.randn(32, 8))).mean()).backward()
                makes.step()
    return watch


@healthy
def word_vectors() -> Watch:
    """Skip-gram with negative samples: most words are rare."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Embedding(1000, 16), nn.Embedding(1000, 16)
            nn.init.zeros_(self.outer.weight)

        def forward(self, pair: tuple[Tensor, Tensor]) -> Any:
            return (self.inner(pair[0])[:, None] * self.outer(pair[1])).sum(-1)

    rare = 1 / torch.arange(1, 1001).float()

    def batch(_step: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        word = torch.multinomial(rare, 128, replacement=True)
        other = torch.cat(
            [(word // 7 * 7)[:, None], torch.multinomial(rare, 512, replacement=True).view(128, 4)], 1
        )
        return (word, other), torch.tensor([1.0, 0, 0, 0, 0]).expand(128, 5)

    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    return fit(model, batch, functional.binary_cross_entropy_with_logits, optimizer=optimizer)


@healthy
def bytes_of_a_text() -> Watch:
    """256 rows, of which lower-case letters are used."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.rnn, self.head = (
                nn.Embedding(256, 24),
                nn.RNN(24, 32, batch_first=True),
                nn.Linear(32, 256),
            )

        def forward(self, x: Tensor) -> Any:
            return self.head(self.rnn(self.embedding(x))[0])

    data = text(26)
    return fit(Net(), lambda step: tuple(each + 97 for each in data(step)), token_loss)  # type: ignore[arg-type,return-value]


@healthy
def waves_by_sines() -> Watch:
    """SIREN: first layer of frequency 30."""

    class Sine(nn.Module):
        def __init__(self, before: int, after: int, frequency: float, bound: float) -> None:
            super().__init__()
            self.linear, self.frequency = nn.Linear(before, after), frequency
            nn.init.uniform_(self.linear.weight, -bound, bound)

        def forward(self, x: Tensor) -> Any:
            return torch.sin(self.frequency * self.linear(x))

    wide = (6 / 32) ** 0.5 / 30
    model = nn.Sequential(Sine(1, 32, 30, 1.0), Sine(32, 32, 30, wide), nn.Linear(32, 1))
    x = torch.linspace(-1, 1, 200)[:, None]
    y = torch.sin(9 * x) * torch.cos(4 * x)
    return fit(
        model, lambda _: (x, y), functional.mse_loss, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3)
    )


@healthy
def random_frequencies() -> Watch:
    """Fourier features in a buffer, then an MLP."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("frequencies", torch.randn(2, 32) * 5)
            self.net = mlp(64, 64, 1)

        def forward(self, x: Tensor) -> Any:
            angle = torch.matmul(x, self.get_buffer("frequencies"))
            return self.net(torch.cat([angle.sin(), angle.cos()], 1))

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        x = torch.rand(64, 2)
        return x, torch.sin(5 * x[:, :1]) * x[:, 1:]

    return fit(Net(), batch, functional.mse_loss)


@healthy
def distillation() -> Watch:
    """The frozen teacher is part of the module, in eval mode, never trained."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.teacher = mlp(20, 64, 64, 4).requires_grad_(False).eval()
            self.student = mlp(20, 32, 4)

        def forward(self, x: Tensor) -> Any:
            with torch.no_grad():
                wanted = self.teacher(x).softmax(-1)
            return functional.kl_div(self.student(x).log_softmax(-1), wanted, reduction="batchmean")

    return fit(Net(), classes(), lambda loss, _: loss)


@healthy
def head_that_begins_at_zero() -> Watch:
    """The last layer's weights and biases are 0 at first."""
    model = mlp(10, 32, 1)
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    return fit(model, numbers(), functional.mse_loss)


@healthy
def sparse_code() -> Watch:
    """A sparse autoencoder with an L1 penalty."""
    model = mlp(16, 64, 16)
    basis = torch.randn(32, 16)

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        x = (torch.rand(64, 32) * (torch.rand(64, 32) < 0.1)) @ basis
        return x, x

    code: list[Tensor] = []
    model[1].register_forward_hook(lambda _m, _i, output: code.append(output))

    def loss(output: Tensor, x: Tensor) -> Tensor:
        return functional.mse_loss(output, x) + 1e-3 * code.pop().abs().sum(1).mean()

    return fit(model, batch, loss, steps=100)


@healthy
def validation_in_between() -> Watch:
    """eval() and train() around a validation every 20 steps."""
    model = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4))
    data = classes(rows=16)

    def validate(step: int) -> None:
        if step % 20 == 19:
            model.eval()
            with torch.no_grad():
                model(data(step)[0])
            model.train()

    return fit(model, data, steps=80, after=validate)


@healthy
def two_optimizers_for_one_model() -> Watch:
    """Each has half of the model; one is watched."""
    model, data = mlp(20, 64, 64, 4), classes()
    one = torch.optim.SGD(model[0].parameters(), lr=0.05)
    other = torch.optim.Adam([*model[2].parameters(), *model[4].parameters()], lr=1e-3)
    with Watch(model, one) as watch:
        for step in range(60):
            x, y = data(step)
            model.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            watch.log(loss=loss)
            other.step()
            one.step()
    return watch


@healthy
def actor_and_critic() -> Watch:
    """PPO-like: several passes over the same rollout, entropy bonus."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.policy, self.value = (
                mlp(4, 32, 32, activation=nn.Tanh),
                nn.Linear(32, 2),
                nn.Linear(32, 1),
            )

        def forward(self, x: Tensor) -> Any:
            hidden = torch.tanh(self.body(x))
            return self.policy(hidden), self.value(hidden)[:, 0]

    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with Watch(model, optimizer) as watch:
        for _ in range(15):
            x = torch.randn(32, 4)
            with torch.no_grad():
                action = torch.distributions.Categorical(logits=model(x)[0]).sample()
                old = torch.distributions.Categorical(logits=model(x)[0]).log_prob(action)
            reward = torch.where(action == (x[:, 0] > 0), 1.0, -1.0)
            for _ in range(4):
                logits, value = model(x)
                chosen = torch.distributions.Categorical(logits=logits)
                ratio = (chosen.log_prob(action) - old).exp()
                advantage = (reward - value).detach()
                gained = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
                loss = -gained + 0.5 * functional.mse_loss(value, reward) - 0.01 * chosen.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                watch.log(loss=loss)
                optimizer.step()
    return watch


@healthy
def coupling_flow() -> Watch:
    """RealNVP: the loss is a negative log-likelihood and may be below 0."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nets = nn.ModuleList(mlp(1, 32, 2) for _ in range(4))

        def forward(self, x: Tensor) -> Any:
            volume = torch.zeros(len(x))
            for number, net in enumerate(self.nets):
                a, b = (x[:, :1], x[:, 1:]) if number % 2 else (x[:, 1:], x[:, :1])
                scale, shift = net(a).chunk(2, 1)
                scale = torch.tanh(scale)
                x = torch.cat([a, b * scale.exp() + shift], 1)
                volume = volume + scale[:, 0]
            return 0.5 * (x**2).sum(1) - volume

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        angle = torch.rand(64) * 6.28
        x = torch.stack([angle.cos(), angle.sin()], 1) + 0.1 * torch.randn(64, 2)
        return x, x

    return fit(Net(), batch, lambda cost, _: cost.mean())


@healthy
def tied_autoencoder() -> Watch:
    """F.linear with the transposed weight: the second half has no module."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.code = nn.Linear(16, 8)
            self.bias = nn.Parameter(torch.zeros(16))

        def forward(self, x: Tensor) -> Any:
            return functional.linear(torch.tanh(self.code(x)), self.code.weight.T, self.bias)

    basis = torch.randn(4, 16)

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(32, 4) @ basis / 2
        return x, x

    return fit(Net(), batch, functional.mse_loss)


@healthy
def feature_extraction_without_freezing() -> Watch:
    """Only the last layer goes to the optimizer, and the others are frozen first."""
    model = mlp(20, 64, 4)
    model[0].requires_grad_(False)
    return fit(model, classes(), optimizer=torch.optim.SGD(model[2].parameters(), lr=0.1))


def _of_two(step_batches: Any) -> Any:
    def batch(step: int) -> tuple[Tensor, Tensor]:
        x, y = step_batches(step)
        return x, y.float()[:, None]

    return batch


@healthy
def softmax_with_the_logarithm_of_it() -> Watch:
    """nn.Softmax as the last layer, and the negative logarithm of the right class."""

    def loss(p: Tensor, y: Tensor) -> Tensor:
        return functional.nll_loss(p.clamp_min(1e-8).log(), y)

    return fit(nn.Sequential(mlp(20, 64, 4), nn.Softmax(dim=1)), classes(), loss)


@healthy
def brier_score_of_three_classes() -> Watch:
    """nn.Softmax as the last layer, and the squared distance from the right class."""

    def loss(p: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(p, functional.one_hot(y, 3).float())

    return fit(nn.Sequential(mlp(20, 64, 3), nn.Softmax(dim=1)), classes(number=3), loss)


@healthy
def log_softmax_before_cross_entropy() -> Watch:
    """Superfluous, and harmless: the logarithm of a softmax is its own log-softmax."""
    return fit(nn.Sequential(mlp(20, 64, 4), nn.LogSoftmax(dim=1)), classes())


@healthy
def sigmoid_with_bce() -> Watch:
    """nn.Sigmoid as the last layer, and BCELoss, which wants probabilities."""
    model = nn.Sequential(mlp(20, 64, 1), nn.Sigmoid())
    return fit(model, _of_two(classes(number=2)), functional.binary_cross_entropy)


@healthy
def sigmoid_with_squared_error() -> Watch:
    """nn.Sigmoid as the last layer, and MSELoss."""
    model = nn.Sequential(mlp(20, 64, 1), nn.Sigmoid())
    return fit(model, _of_two(classes(number=2)), functional.mse_loss)


@healthy
def policy_of_probabilities() -> Watch:
    """REINFORCE with Categorical(probs=softmax), near uniform at first."""
    data = classes(number=4)

    def loss(p: Tensor, y: Tensor) -> Tensor:
        policy = torch.distributions.Categorical(probs=p)
        action = policy.sample()
        gain: Tensor = policy.log_prob(action) * ((action == y).float() - 0.25)
        return -gain.mean()

    return fit(nn.Sequential(mlp(20, 64, 4), nn.Softmax(dim=1)), data, loss)


@healthy
def solved_in_one_step() -> Watch:
    """LBFGS, linear regression: the first step changes the weights by four times their size, and all but solves it."""
    model, x = nn.Linear(16, 1), torch.randn(64, 16)
    y = x[:, :1] * 2 + 1
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    with Watch(model, optimizer) as watch:

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            watch.log(loss=loss)
            loss.backward()
            return loss

        for _ in range(15):
            optimizer.step(closure)
    return watch
