"""The layers of a watch, which keep no module alive, and what is known of each when its module is gone."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchtap.hooks import Layer

FACTS = (
    "in_features",
    "out_features",
    "in_channels",
    "out_channels",
    "kernel_size",
    "groups",
    "num_features",
    "num_groups",
    "normalized_shape",
    "num_embeddings",
    "embedding_dim",
    "padding_idx",
    "embed_dim",
    "num_heads",
    "input_size",
    "hidden_size",
    "nonlinearity",
    "eps",
    "momentum",
    "track_running_stats",
    "p",
    "inplace",
    "negative_slope",
    "dim",
)
"""Attributes of modules that are kept with a layer."""


@dataclass(frozen=True, slots=True)
class Known:
    """Of a module, as it was when somebody looked last."""

    facts: dict[str, Any]
    """Those of `FACTS` that it has, numbers and words."""
    fan_in: int | None
    training: bool
    parameters: tuple[str, ...]
    """Names of its own."""
    type: type[nn.Module]


class WatchedLayer:
    """A layer that is watched."""

    __slots__ = ("_compiled", "_known", "_module", "kind", "name", "names")

    def __init__(self, layer: Layer) -> None:
        self.name = layer.name
        """As its user knows it: that of `named_modules()` without wrappers; "" is the model itself."""
        self.names = layer.names
        """All its names, `name` first."""
        self.kind = layer.kind
        """The name of its class: "Linear"."""
        self._module = weakref.ref(layer.module)
        self._compiled = tuple(weakref.ref(each) for each in layer.compiled)
        self._known = _known(layer.module)

    @property
    def module(self) -> nn.Module | None:
        """As long as it is there."""
        return self._module()

    def hookable(self) -> Layer | None:
        """What `Hooks` takes; None where the module is gone."""
        module = self._module()
        if module is None:
            return None
        compiled = tuple(there for each in self._compiled if (there := each()) is not None)
        return Layer(self.name, self.names, module, self.kind, compiled)

    def known(self) -> Known:
        """As its module is, or was when this was asked last."""
        if (module := self._module()) is not None:
            self._known = _known(module)
        return self._known

    def __repr__(self) -> str:
        return f"<{self.name or 'the model itself'}: {self.kind}>"


def _known(module: nn.Module) -> Known:
    own = tuple(name for name, each in module._parameters.items() if each is not None)
    return Known(_facts(module), fan_in(module), module.training, own, type(module))


def _facts(module: nn.Module) -> dict[str, Any]:
    found = {name: _attribute(module, name) for name in FACTS}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, (int, float, str, tuple)) and not isinstance(value, Tensor)
    }


def _attribute(module: nn.Module, name: str) -> Any:
    try:
        return getattr(module, name, None)
    except Exception:  # a property of the user's that has this name may raise
        return None


def fan_in(module: nn.Module) -> int | None:
    """Inputs of one unit; None for a module without a weight matrix."""
    if isinstance(module, nn.Embedding):
        return None
    own = module._parameters  # never an attribute: a parametrization would compute it, and may change by that
    weight = own.get("weight")
    if isinstance(weight, Tensor) and is_lazy(weight):  # of no shape yet
        return None
    if isinstance(weight, Tensor) and weight.dim() >= 2:
        transposed = type(module).__name__.startswith("ConvTranspose")
        return int(weight.numel() // max(1, weight.shape[1 if transposed else 0]))
    recurrent = own.get("weight_hh_l0")
    recurrent = recurrent if recurrent is not None else own.get("weight_hh")
    return int(recurrent.shape[1]) if isinstance(recurrent, Tensor) else None
