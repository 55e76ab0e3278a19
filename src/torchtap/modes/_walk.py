"""The modules of a model and their modes, whatever they are: half made, not hashable, nested thousands deep.

PyTorch's own `modules()` and `named_modules()` put modules into sets, which asks users' classes for their `__hash__`;
they recur, and they raise where a module is half made. These here do not, and never raise.
"""

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


def modules(*models: nn.Module) -> list[nn.Module]:
    """Every module of these models once, parents before their children: the same walk, several times as fast."""
    found: dict[int, nn.Module] = {}
    todo = list(reversed(models))
    while todo:
        module = todo.pop()
        if id(module) not in found:
            found[id(module)] = module
            try:
                registered = module._modules
            except AttributeError:
                continue
            if registered:
                todo += [each for each in reversed(list(registered.values())) if isinstance(each, nn.Module)]
    return list(found.values())


def holders(model: nn.Module, module: nn.Module) -> list[nn.Module]:
    """`module`, what holds it, what holds that, up to the model; empty where the model does not hold it."""
    by_path = {}
    for path, each in named_modules(model):
        by_path[path] = each
        if each is module:
            break
    else:
        return []
    found = [module]
    while path:
        path = path.rpartition(".")[0]
        found.append(by_path[path])
    return found


def children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Its registered modules with their names, shared ones each time; none where `super().__init__()` never ran."""
    try:
        registered = list(module._modules.items())
    except AttributeError:
        return
    yield from ((name, child) for name, child in registered if isinstance(child, nn.Module))


def parameters(module: nn.Module) -> list[nn.Parameter]:
    """Its own parameters, those of children left out."""
    registered = getattr(module, "_parameters", None) or {}  # not in vars() of what torch.jit.trace made
    return [each for each in registered.values() if each is not None]


def is_made(module: nn.Module) -> bool:
    """Whether `super().__init__()` has run: else PyTorch can do nothing with it."""
    try:
        module._modules  # noqa: B018
    except AttributeError:
        return False
    return True


def mode_of(module: nn.Module) -> bool | None:
    """Its mode; None where it has none, or none that can be read: half made, frozen by torch.jit, a property."""
    try:
        return bool(module.training)
    except Exception:  # a property of the user's own may raise anything
        return None


def joined(path: str, name: str) -> str:
    """The path of what is called `name` in the module at `path`; either may be empty: the model itself has no name."""
    return f"{path}.{name}" if path and name else path or name


def all_parameters(model: nn.Module) -> list[nn.Parameter]:
    """As `model.parameters()`: each once, those of children too."""
    return list({id(each): each for module in modules(model) for each in parameters(module)}.values())
