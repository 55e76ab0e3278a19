"""The package's front: what it imports, what it names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import torchtap
from torchtap import selftest

SOURCE = Path(torchtap.__file__).parent
HEAVY = ("torch", "numpy", "rich", "typer", "matplotlib", "ipywidgets", "tensorboard")


def modules_after(code: str) -> set[str]:
    """The top-level modules that a fresh process has loaded after this code."""
    program = f"import sys\n{code}\nprint(*sorted(name for name in sys.modules if '.' not in name))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing_heavy():
    """It costs a few milliseconds, and works without the extras."""
    assert not set(HEAVY) & modules_after("import torchtap")


def test_reading_the_version_and_the_names_imports_nothing_heavy():
    """`dir` too, for tab completion."""
    assert not set(HEAVY) & modules_after("import torchtap\ntorchtap.__version__, dir(torchtap)")


def test_the_self_tests_front_imports_no_torch():
    """It must survive a torch that crashes on import."""
    loaded = modules_after(
        "from torchtap import selftest\nselftest.run, selftest.CHECKS, selftest.smi.judge, selftest.Report"
    )
    assert not {"torch", "numpy", "typer", "rich"} & loaded


@pytest.mark.parametrize("module", [torchtap, selftest], ids=lambda module: module.__name__)
def test_public_names_are_sorted_and_resolve(module):
    """Each name of `__all__` is there, also for `dir` and for `from ... import *`."""
    assert list(module.__all__) == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("module", [torchtap, selftest], ids=lambda module: module.__name__)
def test_a_name_that_is_not_there_raises_as_usual(module):
    """hasattr and getattr with a default must work."""
    assert not hasattr(module, "no_such_name")
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'no_such_name'"):
        _ = module.no_such_name


def test_a_lazy_name_is_the_object_itself():
    """Asked once, then stored; the same as by its full path."""
    from torchtap.selftest.runner import run

    assert torchtap.selftest is selftest
    assert selftest.run is run


def test_type_checkers_see_the_lazy_names():
    """py.typed is there, and each lazy name is imported under TYPE_CHECKING."""
    assert (SOURCE / "py.typed").exists()
    for front in (SOURCE / "__init__.py", SOURCE / "selftest" / "__init__.py"):
        text = front.read_text()
        typed = text.partition("if TYPE_CHECKING:\n")[2].partition("\n\n")[0]
        names = (torchtap if front.parent == SOURCE else selftest).__all__
        assert all(name in typed for name in names if not name.startswith("__")), front


def test_the_version_is_the_one_that_is_built():
    """pyproject.toml and the package agree."""
    pyproject = SOURCE.parents[1] / "pyproject.toml"
    assert f'\nversion = "{torchtap.__version__}"\n' in pyproject.read_text()
