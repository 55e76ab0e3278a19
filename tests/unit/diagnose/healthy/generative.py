"""Generators, autoencoders and agents: losses that need not fall."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.unit.diagnose.training import fit, healthy, images, mlp
from torchtap.monitor._watch import Watch


class Variational(nn.Module):
    """VAE of vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.mean, self.spread = nn.Linear(64, 32), nn.Linear(32, 4), nn.Linear(32, 4)
        self.fc3, self.fc4 = nn.Linear(4, 32), nn.Linear(32, 64)

    def forward(self, x: Tensor) -> Any:
        hidden = functional.relu(self.fc1(x))
        mean, spread = self.mean(hidden), self.spread(hidden)
        z = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        return torch.sigmoid(self.fc4(functional.relu(self.fc3(z)))), mean, spread


@healthy
def variational_autoencoder() -> Watch:
    """VAE as in pytorch/examples: sums, not means."""
    pictures = (torch.rand(6, 64) < 0.3).float()

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        x = (pictures[torch.randint(6, (32,))] + 0.1 * torch.rand(32, 64)).clamp(0, 1)
        return x, x

    def loss(output: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        made, mean, spread = output
        return functional.binary_cross_entropy(made, x, reduction="sum") - 0.5 * torch.sum(
            1 + spread - mean**2 - spread.exp()
        )

    model = Variational()
    return fit(model, batch, loss, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3), steps=100)


@healthy
def autoencoder() -> Watch:
    """Convolutional, with a narrow code."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 6),
        nn.Linear(6, 144),
        nn.ReLU(),
        nn.Unflatten(1, (16, 3, 3)),
        nn.ConvTranspose2d(16, 8, 2, stride=2),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 1, 2, stride=2),
    )
    data = images()
    return fit(model, lambda step: (data(step)[0],) * 2, functional.mse_loss, steps=80)


def _gan(*, watch_generator: bool) -> Watch:
    generator = mlp(8, 32, 32, 2)
    judge = mlp(2, 32, 32, 1, activation=lambda: nn.LeakyReLU(0.2))
    makes = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    judges = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.999))
    bce = functional.binary_cross_entropy_with_logits
    watch = Watch(generator, makes) if watch_generator else Watch(judge, judges)
    with watch:
        for _ in range(80):
            real = torch.randn(32, 2) * 0.2 + torch.tensor([1.0, -1.0])
            fake = generator(torch.randn(32, 8))
            judge.zero_grad()
            loss = bce(judge(real), torch.ones(32, 1)) + bce(judge(fake.detach()), torch.zeros(32, 1))
            loss.backward()
            if not watch_generator:
                watch.log(loss=loss)
            judges.step()
            generator.zero_grad()
            wanted = bce(judge(fake), torch.ones(32, 1))
            wanted.backward()
            if watch_generator:
                watch.log(loss=wanted)
            makes.step()
    return watch


@healthy
def gan_generator() -> Watch:
    """GAN, its generator watched."""
    return _gan(watch_generator=True)


@healthy
def gan_discriminator() -> Watch:
    """GAN, its discriminator watched: the generator's loss runs through it, too."""
    return _gan(watch_generator=False)


@healthy
def gan_in_one_module() -> Watch:
    """GAN, both networks in one module, only one of two optimizers watched."""
    both = nn.ModuleDict({"g": mlp(8, 32, 2), "d": mlp(2, 32, 1)})
    g, d = both["g"], both["d"]
    makes = torch.optim.Adam(g.parameters(), lr=1e-3)
    judges = torch.optim.Adam(d.parameters(), lr=1e-3)
    bce = functional.binary_cross_entropy_with_logits
    with Watch(both, judges) as watch:
        for _ in range(60):
            real, fake = torch.randn(32, 2) + 1, g(torch.randn(32, 8))
            judges.zero_grad()
            loss = bce(d(real), torch.ones(32, 1)) + bce(d(fake.detach()), torch.zeros(32, 1))
            loss.backward()
            watch.log(loss=loss)
            judges.step()
            makes.zero_grad()
            bce(d(fake), torch.ones(32, 1)).backward()
            makes.step()
    return watch


class Walk:
    """An environment: stay near 0."""

    def __init__(self) -> None:
        self.state = torch.randn(4)

    def step(self, action: int) -> tuple[Tensor, float]:
        """The next state and a reward."""
        push = torch.tensor([0.2 if action else -0.2, 0.0, 0.0, 0.0])
        self.state = 0.95 * self.state + push + 0.05 * torch.randn(4)
        return self.state, 1.0 - abs(float(self.state[0]))


@healthy
def q_learning() -> Watch:
    """DQN with a target network inside the same module, frozen and copied now and then."""

    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.online = mlp(4, 32, 2)
            self.target = copy.deepcopy(self.online).requires_grad_(False)

        def forward(self, x: Tensor) -> Any:
            return self.online(x)

    agent, walk = Agent(), Walk()
    memory: list[tuple[Tensor, int, float, Tensor]] = []
    optimizer = torch.optim.Adam(agent.online.parameters(), lr=1e-3)
    state = walk.state
    with Watch(agent, optimizer) as watch:
        for step in range(120):
            with torch.no_grad():
                action = (
                    int(agent(state[None]).argmax()) if torch.rand(()) > 0.3 else int(torch.randint(2, ()))
                )
            following, reward = walk.step(action)
            memory.append((state, action, reward, following))
            state = following
            if len(memory) < 20:
                continue
            some = [memory[place] for place in torch.randint(len(memory), (16,)).tolist()]
            x, after = torch.stack([each[0] for each in some]), torch.stack([each[3] for each in some])
            with torch.no_grad():
                wanted = torch.tensor([each[2] for each in some]) + 0.9 * agent.target(after).amax(1)
            value = agent(x)[torch.arange(16), torch.tensor([each[1] for each in some])]
            loss = functional.smooth_l1_loss(value, wanted)
            optimizer.zero_grad()
            loss.backward()
            watch.log(loss=loss)
            optimizer.step()
            if step % 20 == 0:
                agent.target.load_state_dict(agent.online.state_dict())
    return watch


@healthy
def reinforce() -> Watch:
    """Policy gradient, one episode a step."""
    policy = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.3), nn.ReLU(), nn.Linear(32, 2), nn.Softmax(-1))
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    with Watch(policy, optimizer) as watch:
        for _ in range(60):
            walk = Walk()
            state, logs, rewards = walk.state, [], []
            for _ in range(8):
                choice = torch.distributions.Categorical(policy(state[None])[0])
                action = choice.sample()
                logs.append(choice.log_prob(action))
                state, reward = walk.step(int(action))
                rewards.append(reward)
            returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
            returns = (returns - returns.mean()) / (returns.std() + 1e-6)
            loss = -(torch.stack(logs) * returns).sum()
            optimizer.zero_grad()
            loss.backward()
            watch.log(loss=loss)
            optimizer.step()
    return watch


@healthy
def denoising_diffusion() -> Watch:
    """Predict the noise; the loss is noisy, too."""

    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Embedding(20, 16)
            self.net = nn.Sequential(
                nn.Linear(18, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2)
            )

        def forward(self, pair: tuple[Tensor, Tensor]) -> Any:
            return self.net(torch.cat([pair[0], self.time(pair[1])], 1))

    def batch(_step: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        angle = torch.rand(64) * 6.28
        x, noise, time = (
            torch.stack([angle.cos(), angle.sin()], 1),
            torch.randn(64, 2),
            torch.randint(20, (64,)),
        )
        kept = 1 - (time[:, None] + 1) / 21
        return (kept.sqrt() * x + (1 - kept).sqrt() * noise, time), noise

    model = Denoiser()
    return fit(
        model, batch, functional.mse_loss, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3), steps=100
    )


@healthy
def image_from_fixed_noise() -> Watch:
    """Deep image prior: one fixed noise, one picture, a single row."""
    model = nn.Sequential(
        nn.Conv2d(4, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 1, 3, padding=1),
    )  # fmt: skip
    noise, picture = torch.randn(1, 4, 12, 12), torch.rand(1, 1, 12, 12)
    return fit(model, lambda _: (noise, picture), functional.mse_loss)
