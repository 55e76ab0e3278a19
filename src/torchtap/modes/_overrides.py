"""Classes that define `train` or `eval` anew: whether the mode still reaches what is below.

`Module.eval()` calls `self.train(False)`, and `Module.train(mode)` calls `child.train(mode)` on each child, never
`child.eval()`. So a `train` of one's own is called with one bool, by every parent, and has to hand it on.

What a method does is read from its source, once for each; where there is none, from the names in its bytecode.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import nn

from torchtap._findings import Finding, Severity
from torchtap.modes._walk import children, mode_of, named_modules
from torchtap.modes.kinds import what_mode_changes

_GOES_DOWN = frozenset({"children", "modules", "named_children", "named_modules", "_modules", "apply"})
ID = "module.train_overridden"
IDIOM = "def train(self, mode=True): super().train(mode); self.frozen.eval(); return self"


@dataclass(slots=True)
class Reading:
    """What a method called `train` or `eval` does, as far as its source shows."""

    to_super: set[str] = field(default_factory=set)
    """How it calls the one it overrides: "mode" (hands its own argument on), "True", "False"; empty: not at all."""
    goes_down: bool = False
    """Whether it sets modes in a loop over its children."""
    sets_own: bool = False
    """Whether it writes `self.training`."""
    returns: bool = False
    """Whether it returns anything."""
    empty: bool = True
    """Whether it does nothing at all but return something."""
    names: set[str] = field(default_factory=set)
    """Attributes of `self`, and strings, that it names."""
    helpers: set[str] = field(default_factory=set)
    """Methods of its own that it calls."""

    @property
    def sets_modes(self) -> bool:
        """Whether it has anything to do with modes."""
        return bool(self.to_super) or self.goes_down or self.sets_own

    def add(self, other: Reading) -> None:
        """What a helper does, it does."""
        self.to_super |= other.to_super
        self.goes_down |= other.goes_down
        self.sets_own |= other.sets_own
        self.names |= other.names


@cache
def _read(code: CodeType) -> Reading:
    tree = _parsed(code)
    return _from_bytecode(code) if tree is None else _from_source(tree)


def _parsed(code: CodeType) -> ast.FunctionDef | None:
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(code))).body
    except (OSError, SyntaxError, ValueError, TypeError, IndexError):
        return None
    return tree if isinstance(tree, ast.FunctionDef) else None


def _from_bytecode(code: CodeType) -> Reading:
    names = set(code.co_names) | {each for each in code.co_consts if isinstance(each, str)}
    calls_super = "super" in names or "__class__" in code.co_freevars or "Module" in names
    return Reading(
        to_super={"mode"} if calls_super and names & {"train", "eval"} else set(),
        goes_down=bool(names & _GOES_DOWN),
        sets_own="training" in names,
        returns=True,
        empty=not names,
        names=names,
    )


def _from_source(function: ast.FunctionDef) -> Reading:
    arguments = function.args
    given = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    self, modes = (given[0], set(given[1:])) if given else ("self", set())
    modes |= {each.arg for each in (arguments.vararg, arguments.kwarg) if each is not None}
    read = Reading()
    for node in ast.walk(function):
        if isinstance(node, ast.Return):
            read.returns |= not (node.value is None or _is_constant(node.value, None))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if _is_super(node, self):
                if node.func.attr in ("train", "eval"):
                    read.to_super.add(_mode_given(node, modes, self))
            elif _is_name(node.func.value, self):
                read.helpers.add(node.func.attr)
        if isinstance(node, ast.Attribute) and _is_name(node.value, self):
            read.names.add(node.attr)
            read.sets_own |= node.attr == "training" and isinstance(node.ctx, ast.Store)
            read.sets_own |= node.attr in ("modules", "named_modules", "apply")  # they begin with itself
            read.goes_down |= node.attr in _GOES_DOWN
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            read.names.add(node.value)
    read.goes_down &= any(
        isinstance(node, ast.Attribute) and node.attr in ("train", "eval", "training", "apply")
        for node in ast.walk(function)
    )
    read.empty = all(
        isinstance(each, (ast.Pass, ast.Return))
        or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
        for each in function.body
    ) and not any(isinstance(node, ast.Call) for node in ast.walk(function))
    return read


def _is_super(call: ast.Call, self: str) -> bool:
    """`super().train(...)`, `super(Own, self).train(...)`, `nn.Module.train(self, ...)`."""
    assert isinstance(call.func, ast.Attribute)
    receiver = call.func.value
    if isinstance(receiver, ast.Call):
        return _is_name(receiver.func, "super")
    return bool(call.args) and _is_name(call.args[0], self) and not _is_name(receiver, self)


def _mode_given(call: ast.Call, modes: set[str], self: str) -> str:
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr == "eval":
        return "False"
    given = [each for each in call.args if not _is_name(each, self)] + [each.value for each in call.keywords]
    if not given or _is_constant(given[0], True):
        return "True"
    if _is_constant(given[0], False):
        return "False"
    names = {node.id for each in given for node in ast.walk(each) if isinstance(node, ast.Name)}
    return "mode" if names & modes or not _is_constant(given[0], ...) else "True"


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_constant(node: ast.AST, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _function(value: object) -> FunctionType | None:
    """The Python function behind a method, decorators that use functools.wraps taken off."""
    value = getattr(value, "__func__", value)
    value = inspect.unwrap(value) if callable(value) else value
    return value if isinstance(value, FunctionType) else None


def _of_torch(name: str | None) -> bool:
    return (name or "").partition(".")[0] == "torch"


def _definitions(module: nn.Module, name: str) -> Iterator[tuple[str, Any]]:
    """(class, what it defines as `name`), most special first, up to PyTorch's own."""
    for cls in type(module).__mro__:
        if _of_torch(cls.__module__):
            return
        if name in vars(cls):
            yield cls.__name__, vars(cls)[name]


def _whole_reading(module: nn.Module, function: FunctionType) -> Reading:
    """What the function does, helpers that it calls on `self` included, one level deep."""
    first = _read(function.__code__)
    read = Reading(**{name: getattr(first, name) for name in ("goes_down", "sets_own", "returns", "empty")})
    read.to_super, read.names = set(first.to_super), set(first.names)
    for name in first.helpers - {"train", "eval"}:
        for _, value in _definitions(module, name):
            helper = _function(value)
            if helper is not None:
                read.add(_read(helper.__code__))
            break
    return read


def trains_by_hand(module: nn.Module, name: str) -> bool:
    """Whether a `train` of its own names this attribute: then what is in it is somebody's business."""
    for _, value in _definitions(module, "train"):
        function = _function(value)
        if function is not None and name in _whole_reading(module, function).names:
            return True
    return False


def overridden(module: nn.Module, path: str) -> list[Finding]:
    """`module.train_overridden`: what keeps `train()` and `eval()` from setting modes here and below; worst first."""
    return sorted(_overridden(module, path), key=lambda finding: finding.severity is Severity.INFO)


def _overridden(module: nn.Module, path: str) -> Iterator[Finding]:
    try:
        own = vars(module)
        training = module.training
    except Exception:  # half made; a property of the user's own may raise anything
        return
    if not isinstance(training, bool):
        yield _finding(
            Severity.WARN,
            path,
            f"training is {type(training).__name__}, {training!r:.40}, not a bool",
            "modules read self.training as their mode; a setting of that name is taken for it",
            "another name for the setting; set the mode by train() and eval() only",
        )
    for name in ("train", "eval"):
        if name in own:
            yield from _on_instance(module, path, name, own[name])
            break
    else:
        yield from _by_class(module, path)


def _on_instance(module: nn.Module, path: str, name: str, value: Any) -> Iterator[Finding]:
    cls = type(module).__name__
    if not callable(value):
        yield _finding(
            Severity.WARN,
            path,
            f"attribute {name} = {value!r:.40} hides {cls}.{name}()",
            f"train(), eval() or a parent calls it: '{type(value).__name__}' object is not callable",
            "another name for the attribute",
        )
        return
    function = _function(value)
    if function is not None and _of_torch(function.__module__):
        yield _finding(
            Severity.INFO,
            path,
            f"train() and eval() of {cls} raise: the mode was fixed when it was exported",
            "an exported program holds what one mode does, not both",
            "export one program for each mode",
        )
        return
    yield from _judged(module, path, f"{name} set on the instance", name, value)


def _by_class(module: nn.Module, path: str) -> Iterator[Finding]:
    for cls, value in _definitions(module, "train"):
        if not callable(_unbound(value)):
            yield from _on_instance(module, path, "train", value)
            return
        yield from _judged(module, path, f"{cls}.train", "train", value)
        function = _function(value)
        if function is None or not _whole_reading(module, function).to_super:
            return  # what is defined above it is not called
    if any(True for _ in _definitions(module, "train")):
        return
    for cls, value in _definitions(module, "eval"):
        yield from _eval_alone(module, path, cls, value)
        return


def _unbound(value: Any) -> Any:
    return value.__func__ if isinstance(value, (staticmethod, classmethod)) else value


def _judged(module: nn.Module, path: str, who: str, name: str, value: Any) -> Iterator[Finding]:
    """Of a `train` that is not PyTorch's."""
    function = _function(value)
    if function is None:
        return
    bound = name in vars(module) and not isinstance(value, MethodType)
    if not _takes_mode(
        value if bound else function, () if bound else (module,), (False,) * (name == "train")
    ):
        yield _finding(
            Severity.WARN,
            path,
            f"{who}{_signature(function)} cannot be called as {name}({'mode' * (name == 'train')})",
            "train(), eval() and every parent's train() call it with one bool: TypeError",
            f"another name, such as fit(), for what is no mode switch; else {IDIOM}",
        )
        return
    yield from _of_reading(module, path, who, _whole_reading(module, function))


def _of_reading(module: nn.Module, path: str, who: str, read: Reading) -> Iterator[Finding]:
    if read.to_super == {"True"}:
        yield _finding(
            Severity.WARN,
            path,
            f"{who} calls the train() it overrides without its own mode",
            "eval() calls train(False), which then puts all in train mode",
            "super().train(mode)",
        )
    elif not read.to_super:
        yield from _without_super(module, path, who, read)
    if read.sets_modes and not read.returns:
        yield _finding(
            Severity.INFO,
            path,
            f"{who} returns None",
            "train() and eval() give the module back: model = model.eval() is None here",
            "return self",
        )


def _without_super(module: nn.Module, path: str, who: str, read: Reading) -> Iterator[Finding]:
    missed = [] if read.goes_down else [name for name, _ in children(module) if name not in read.names]
    stays = [each for name, child in children(module) if name in missed for each in _moded(child)]
    if read.empty:
        fixed = [each for _, each in named_modules(module) if what_mode_changes(each)]
        severity = Severity.WARN if any(map(mode_of, fixed)) else Severity.INFO
        seen = f"{who} does nothing: the mode here and below stays as it is"
        cause = "train(mode) is what sets the mode, for eval() too"
        remedy = f"nothing if it shall stay in eval for good, else leave it out, or {IDIOM}"
    elif not read.sets_modes and not any(name in read.names for name, _ in children(module)):
        severity = Severity.WARN
        seen = f"{who} is redefined and sets no mode"
        cause = "eval() calls train(False): this runs with False in place of its argument, and the mode stays"
        remedy = "another name, such as fit(); the name train belongs to the mode"
    elif missed:
        severity = Severity.WARN if any(map(mode_of, stays)) else Severity.INFO
        shown = ", ".join(missed[:3]) + f" and {len(missed) - 3} more" * (len(missed) > 3)
        seen = f"{who} does not call super().train(mode), nor names {shown}: their modes stay as they are"
        cause = "train(mode) goes down the tree only where each train() hands it on"
        remedy = IDIOM
    elif not read.sets_own:
        severity = Severity.WARN if what_mode_changes(module) else Severity.INFO
        seen = f"{who} sets its children's modes and not its own: training stays {module.training}"
        cause = "super().train(mode) is not called, and self.training is not written"
        remedy = IDIOM
    else:
        return
    yield _finding(severity, path, seen, cause, remedy)


def _moded(module: nn.Module) -> list[nn.Module]:
    return [each for _, each in named_modules(module) if what_mode_changes(each)]


def _eval_alone(module: nn.Module, path: str, cls: str, value: Any) -> Iterator[Finding]:
    function = _function(value)
    if function is None:
        return
    read = _whole_reading(module, function)
    by_train = "train" in _read(function.__code__).helpers  # self.train(False)
    if not _takes_mode(function, (module,), ()):
        severity, seen = Severity.INFO, f"{cls}.eval{_signature(function)} is no mode switch"
        remedy = "another name, such as evaluate(); until then the mode is set by train(False)"
    elif not read.sets_modes and not by_train:
        severity, seen = Severity.WARN, f"{cls}.eval is redefined and sets no mode"
        remedy = "another name, such as evaluate(); until then the mode is set by train(False)"
    else:
        severity = Severity.WARN if path else Severity.INFO
        seen = f"{cls} defines eval() and not train(): a parent's eval() does not call it"
        remedy = "do it in train(self, mode=True), when mode is False, after super().train(mode)"
    yield _finding(
        severity, path, seen, "Module.eval() calls train(False) on all below, never their eval()", remedy
    )


def _takes_mode(function: Callable[..., Any], first: tuple[Any, ...], arguments: tuple[Any, ...]) -> bool:
    try:
        inspect.signature(function).bind(*first, *arguments)
    except TypeError:
        return False
    except ValueError:  # no signature to be had
        return True
    return True


def _signature(function: FunctionType) -> str:
    return "(" + ", ".join(list(inspect.signature(function).parameters)[1:]) + ")"


def _finding(severity: Severity, path: str, seen: str, cause: str, remedy: str) -> Finding:
    return Finding(id=ID, severity=severity, where=path, seen=seen, cause=cause, remedy=remedy)
