"""What one guard watches: its models, by weak reference, and where in them a module stands."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence

from torch import nn

from torchtap._findings import Finding
from torchtap.modes._by_module import ByModule
from torchtap.modes._walk import joined, mode_of, modules, named_modules
from torchtap.modes.reach import hidden_modules


class Watched:
    """The models of a guard. Holds no module alive."""

    def __init__(self, models: Sequence[nn.Module], report: Callable[[Finding], None]) -> None:
        self._models = tuple(weakref.ref(model) for model in models)
        self._names = model_names(models)
        self._paths: dict[int, tuple[weakref.ref[nn.Module], str]] = {}  # by id: a module may define __eq__
        self._strangers: dict[int, tuple[weakref.ref[nn.Module], bool]] = {}  # and whether a model holds it
        # Weak, for the guard holds this: it goes with its last reference, see `ByModule`.
        self._report = weakref.WeakMethod(report)
        self.entry = ByModule[bool]()
        """Each module's mode when the guard was entered, as far as it could be read."""

    def report(self, finding: Finding) -> None:
        """Give the guard a finding. Equal ones are kept once."""
        if (report := self._report()) is not None:
            report(finding)

    @property
    def models(self) -> list[nn.Module]:
        """Those that are still there."""
        return [model for each in self._models if (model := each()) is not None]

    def entered(self) -> None:
        """Look at the models anew."""
        self._find()
        self.entry.clear()
        for module in modules(*self.models):
            if (mode := mode_of(module)) is not None:
                self.entry[module] = mode

    def path(self, module: nn.Module) -> str | None:
        """As in `model.named_modules()`, "" for the model itself; None for what is not part of it.

        A guard of several models puts the model's class before it, numbered where several have one: `Critic.rnn`,
        `Critic` for the model itself.
        """
        known = self._paths.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        stranger = self._strangers.get(id(module))
        if stranger is not None and stranger[0]() is module:
            return None
        self._find()
        known = self._paths.get(id(module))
        if known is not None:
            return known[1]
        self._strangers[id(module)] = weakref.ref(module), self._holds(module)
        return None

    def owns(self, module: nn.Module) -> bool:
        """Whether it is part of a model, or one that a part keeps out of reach: see `reach`."""
        if self.path(module) is not None:
            return True
        stranger = self._strangers.get(id(module))
        return stranger is not None and stranger[1]

    def forget_strangers(self) -> None:
        """Look again the next time: a model may have taken one in."""
        self._strangers = {}

    def _find(self) -> None:
        paths: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        for reference, name in zip(self._models, self._names, strict=True):
            model = reference()
            for path, module in named_modules(model) if model is not None else ():
                paths.setdefault(id(module), (weakref.ref(module), joined(name, path)))
        self._paths = paths

    def _holds(self, module: nn.Module) -> bool:
        return any(
            held is module for hidden in hidden_modules(self.models) for held in modules(hidden.module)
        )


def model_names(models: Sequence[nn.Module]) -> list[str]:
    """What goes before the paths in each model: nothing where there is one, else its class, numbered if need be.

    >>> model_names([nn.ReLU()]), model_names([nn.ReLU(), nn.GELU()]), model_names([nn.ReLU(), nn.ReLU()])
    ([''], ['ReLU', 'GELU'], ['ReLU1', 'ReLU2'])
    """
    if len(models) == 1:
        return [""]
    classes = Counter(type(model).__name__ for model in models)
    seen: Counter[str] = Counter()
    names = []
    for model in models:
        name = type(model).__name__
        seen[name] += 1
        names.append(f"{name}{seen[name]}" if classes[name] > 1 else name)
    return names
