"""Every module of a model under the names that its user knows.

Wrappers hide the model: `DistributedDataParallel(net)` calls each layer `module.<name>`, `torch.compile(net)`
`_orig_mod.<name>`. Here a wrapper has no name of its own, and what it wraps takes its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

# Attributes that only a wrapper has: torch.compile, FSDP, checkpoint_wrapper.
WRAPPED = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
# Wrappers that call it `module`. A user may call a part so, too, hence by class; by name, as few are imported.
_WRAPPERS = frozenset(
    {
        "torch.nn.parallel.data_parallel.DataParallel",
        "torch.nn.parallel.distributed.DistributedDataParallel",
        "torch.optim.swa_utils.AveragedModel",
        "deepspeed.runtime.engine.DeepSpeedEngine",
    }
)
WRAPPING = WRAPPED | {"module"}
"""Names under which a wrapper may hold what it wraps."""
_NAMES = 64
"""Names of one module that are kept. Sharing within sharing doubles them at each level."""


@dataclass(slots=True, eq=False)
class Place:
    """A module where it stands in its model."""

    module: nn.Module
    name: str
    """Without wrappers; "" is the model itself."""
    children: dict[str, Place] = field(default_factory=dict)
    """What it registers, by the name there; wrappers left out."""
    names: list[str] = field(default_factory=list)
    """All it goes by: `name` first."""
    raw: list[str] = field(default_factory=list)
    """The same as `model.named_modules(remove_duplicate=False)` has them, wrappers and all."""
    compiled: tuple[nn.Module, ...] = ()
    """The modules at or above it whose call torch.compile has been asked to compile."""


def places(model: nn.Module) -> list[Place]:
    """Each module of `model` once, in the order of `named_modules()`; wrappers left out."""
    found: dict[int, Place] = {}
    _place(model, "", "", (), found, frozenset())
    return list(found.values())


def _place(
    module: nn.Module,
    name: str,
    raw: str,
    compiled: tuple[nn.Module, ...],
    found: dict[int, Place],
    above: frozenset[int],
) -> Place | None:
    """The place of a module, with all that is below it; None within itself."""
    while (inner := wrapped(module)) is not None:
        compiled = (*compiled, module) if asked_to_compile(module) else compiled
        raw, module = _joined(raw, inner[0]), inner[1]
        if id(module) in above:
            return None
    if id(module) in above:
        return None
    if asked_to_compile(module):
        compiled = (*compiled, module)
    place = found.setdefault(id(module), Place(module, name, compiled=compiled))
    if len(place.names) >= _NAMES:
        return place
    place.names.append(name)
    place.raw.append(raw)
    place.compiled = tuple({id(each): each for each in (*place.compiled, *compiled)}.values())
    first = len(place.names) == 1
    for child_name, child in _registered(module):
        below = _place(
            child,
            _joined(name, child_name),
            _joined(raw, child_name),
            compiled,
            found,
            above | {id(module)},
        )
        if first and below is not None:
            place.children[child_name] = below
    return place


def wrapped(module: nn.Module) -> tuple[str, nn.Module] | None:
    """What this module wraps, with the name of the attribute; None for what is no wrapper.

    >>> wrapped(nn.DataParallel(nn.ReLU()))
    ('module', ReLU())
    >>> wrapped(nn.Sequential(nn.ReLU()))
    """
    for name, child in _registered(module):
        if name in WRAPPED or (name == "module" and _is_wrapper(type(module))):
            return name, child
    return None


def asked_to_compile(module: nn.Module) -> bool:
    """Whether its call is compiled: by `torch.compile(module)`, `module.compile()`, or its forward alone."""
    own = vars(module)
    return (
        "_orig_mod" in (own.get("_modules") or {})
        or own.get("_compiled_call_impl") is not None
        or hasattr(own.get("forward"), "_torchdynamo_orig_callable")
    )


def kind(module: nn.Module) -> str:
    """The name of its class: the one that its user wrote, where PyTorch made a class for this one module.

    >>> kind(nn.utils.parametrizations.weight_norm(nn.Linear(1, 1)))
    'Linear'
    """
    if isinstance(module, torch.jit.ScriptModule):
        return str(getattr(module, "original_name", type(module).__name__))
    of = type(module)
    # parametrize and fully_shard derive a class from the module's own.
    while of.__name__.startswith(("Parametrized", "FSDP")) and len(of.__mro__) > 2:
        below = next((each for each in of.__bases__ if of.__name__.endswith(each.__name__)), None)
        if below is None:
            break
        of = below
    return of.__name__


def never_runs(module: nn.Module) -> bool:
    """Whether it has no forward of its own: `nn.ModuleList` and its like only hold modules."""
    if isinstance(module, torch.jit.ScriptModule):  # its class cannot be asked for `forward`
        return False
    return type(module).forward is nn.Module.forward and "forward" not in vars(module)


def _registered(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Its modules; none where `super().__init__()` never ran, and none of those that make its parameters."""
    for name, child in (vars(module).get("_modules") or {}).items():
        if isinstance(child, nn.Module) and not (name == "parametrizations" and _is_parametrized(module)):
            yield name, child


def _is_parametrized(module: nn.Module) -> bool:
    return type(module).__name__.startswith("Parametrized")


def _is_wrapper(of: type) -> bool:
    return any(f"{each.__module__}.{each.__qualname__}" in _WRAPPERS for each in of.__mro__)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
