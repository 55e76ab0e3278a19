"""The modules of a model, also where one of them is half made: `named_modules()` and `children()` that never raise."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """As `model.named_modules()`: each module once, in that order."""
    seen: set[int] = set()
    todo = [("", model)]
    while todo:
        path, module = todo.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        todo.extend(reversed([(joined(path, name), child) for name, child in children(module)]))


def children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Its registered modules with their names, shared ones each time; none where `super().__init__()` never ran."""
    try:
        registered = list(module._modules.items())
    except AttributeError:
        return
    yield from ((name, child) for name, child in registered if isinstance(child, nn.Module))


def parameters(module: nn.Module) -> list[nn.Parameter]:
    """Its own parameters, those of children left out."""
    registered = getattr(module, "_parameters", None) or {}  # of a scripted module, a property of its class
    return [each for each in registered.values() if each is not None]


def joined(path: str, name: str) -> str:
    """The path of what is called `name` in the module at `path`; either may be empty: the model itself has no name."""
    return f"{path}.{name}" if path and name else path or name


def modules(model: nn.Module) -> list[nn.Module]:
    """As `model.modules()`, which asks each module for its hash."""
    return [module for _, module in named_modules(model)]


def all_parameters(model: nn.Module) -> list[nn.Parameter]:
    """As `model.parameters()`: each once, those of children too."""
    return list({id(each): each for module in modules(model) for each in parameters(module)}.values())
