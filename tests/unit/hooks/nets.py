"""Small nets of every kind that hooks meet: those on which many tools fail, and what else is usual."""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint


class InPlaceModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.r, self.b = nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(self.r(self.a(x)))
        return out


class InPlaceSum(InPlaceModule):
    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        y += x
        out: Tensor = self.b(torch.tanh(y))
        return out


class DictOutput(InPlaceModule):
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Any]:
            return {"double": x * 2, "name": "inner", "rest": [x * 3, None]}

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.Inner()

    def forward(self, x: Tensor) -> Tensor:
        given = self.inner(self.a(x))
        out: Tensor = self.b(given["double"] + given["rest"][0])
        return out


@dataclass
class Given:
    hidden: Tensor
    length: int


class DataclassOutput(InPlaceModule):
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Given:
            return Given(x * 2, len(x))

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.Inner()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(self.inner(self.a(x)).hidden)
        return out


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(4, 3, num_layers=2, dropout=0.5), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(x.unsqueeze(0))[0])
        return out


class Packed(Lstm):
    def forward(self, x: Tensor) -> Tensor:
        sequence, _ = self.rnn(
            pack_padded_sequence(x.unsqueeze(1).repeat(1, 2, 1), torch.tensor([len(x), 1]))
        )
        out: Tensor = self.head(pad_packed_sequence(sequence)[0])
        return out


class Reused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.cell(x))
        out: Tensor = self.head(x)
        return out


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 4)
        self.right = nn.Sequential(self.left, nn.GELU())
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.left(x) + self.right(x))
        return out


class Checkpointed(nn.Module):
    reentrant = False

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.ReLU(inplace=True)) for _ in range(2)
        )
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        for block in self.blocks:
            given = checkpoint(block, x, use_reentrant=self.reentrant)
            assert isinstance(given, Tensor)
            x = given
        out: Tensor = self.head(x)
        return out


class Reentrant(Checkpointed):
    reentrant = True


class KwargsOnly(InPlaceModule):
    class Inner(nn.Module):
        def forward(self, *, values: Tensor, scale: float = 2.0) -> Tensor:
            return values * scale

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.Inner()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(self.inner(values=self.a(input=x), scale=3.0))
        return out


class Unused(InPlaceModule):
    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(4, 4)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2, enable_nested_tensor=False
        )
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(x.unsqueeze(0)))
        return out


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2)
        self.act, self.drop, self.head = nn.ReLU(inplace=True), nn.Dropout2d(), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        image = x.view(-1, 1, 2, 2).to(memory_format=torch.channels_last)
        image = self.norm(self.conv(image))
        image += 1
        out: Tensor = self.head(self.drop(self.act(image)).flatten(1))
        return out


class Passed(InPlaceModule):
    """Layers that give what they were given."""

    def __init__(self) -> None:
        super().__init__()
        self.same, self.flat = nn.Identity(), nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        assert self.same(y) is y
        out: Tensor = self.b(self.flat(y))
        return out


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4, sparse=True)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = nn.Parameter(torch.randn(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.embed((x * 10).long().abs() % 8))
        return out


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.LazyLinear(3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(self.a(x))
        return out


class Parametrized(InPlaceModule):
    def __init__(self) -> None:
        super().__init__()
        nn.utils.parametrizations.spectral_norm(self.a)


NETS: dict[str, Callable[[], nn.Module]] = {
    "in-place ReLU": InPlaceModule,
    "y += x after a layer": InPlaceSum,
    "dict output": DictOutput,
    "dataclass output": DataclassOutput,
    "LSTM": Lstm,
    "PackedSequence": Packed,
    "reused module": Reused,
    "shared module": Shared,
    "checkpoint": Checkpointed,
    "reentrant checkpoint": Reentrant,
    "kwargs only": KwargsOnly,
    "unused layer": Unused,
    "TransformerEncoder": Encoder,
    "conv, channels_last": Conv,
    "layers that pass on": Passed,
    "sparse embedding": Embedded,
    "lazy": Lazy,
    "parametrized": Parametrized,
}


def batch() -> Tensor:
    return torch.randn(6, 4)
