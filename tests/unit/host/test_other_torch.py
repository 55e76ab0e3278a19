"""`make test-torch TORCH=2.9.1`: an environment for one version of PyTorch, made once, and the tests run there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from host import disk, other_torch, proc, venv
from host.paths import Paths
from host.purge import on_disk
from host.show import Problem
from tests.unit.host.checkout import REPOSITORY, Checkout
from tests.unit.host.test_venv import FAKE_PYTHON


@pytest.fixture
def folder(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the fake Python notes what pip is asked for."""
    made = checkout.root.parent
    (made / "state.json").write_text("{}")
    program = made / "python"
    program.write_text(FAKE_PYTHON.format(python=sys.executable, folder=str(made)))
    program.chmod(0o755)
    monkeypatch.setattr(disk, "free_bytes", lambda _: 10**12)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.delenv("TORCH", raising=False)
    return made


def installs(folder: Path) -> list[list[str]]:
    file = folder / "pip.calls"
    calls = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    file.unlink(missing_ok=True)
    return calls


def test_it_is_made_once_for_each_version(checkout: Checkout, folder: Path) -> None:
    paths = Paths(checkout.root)
    there = other_torch.ensure(paths, "2.9.1", "")
    assert there.path == checkout.root / ".torchtap" / "torch-2.9.1"
    (asked,) = installs(folder)
    assert asked[-3:] == ["torch==2.9.1", "--editable", f"{checkout.root}[test]"]
    other_torch.ensure(paths, "2.9.1", "")
    assert installs(folder) == []
    other_torch.ensure(paths, "2.10.0", "https://wheels.invalid")
    (asked,) = installs(folder)
    assert asked[asked.index("--extra-index-url") + 1] == "https://wheels.invalid"
    assert not (checkout.root / ".venv").exists()


def test_a_changed_pyproject_is_installed(checkout: Checkout, folder: Path) -> None:
    paths = Paths(checkout.root)
    other_torch.ensure(paths, "2.9.1", "")
    with (checkout.root / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    installs(folder)
    other_torch.ensure(paths, "2.9.1", "")
    assert len(installs(folder)) == 1


def test_one_that_was_left_half_made_is_repaired(checkout: Checkout, folder: Path) -> None:
    paths = Paths(checkout.root)
    (folder / "state.json").write_text(json.dumps({"fails": "torch=="}))
    with pytest.raises(Problem, match=r"pip could not install PyTorch 2\.9\.1"):
        other_torch.ensure(paths, "2.9.1", "")
    (folder / "state.json").write_text("{}")
    installs(folder)
    other_torch.ensure(paths, "2.9.1", "")
    assert len(installs(folder)) == 1


def test_too_little_disk_is_found_first(
    checkout: Checkout, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda _: 1_000_000_000)
    with pytest.raises(Problem, match=r"too little disk: PyTorch 2\.9\.1"):
        other_torch.ensure(Paths(checkout.root), "2.9.1", "")


@pytest.mark.parametrize("text", ["2.9", "nightly", "2.9.1; ls", "../2.9.1"])
def test_what_is_no_version_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TORCH", text)
    with pytest.raises(Problem, match="is no version of PyTorch"):
        other_torch.asked()


def test_without_a_version_it_is_the_oldest_of_the_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH", "")
    assert other_torch.asked() == "2.9.1"
    monkeypatch.setenv("TORCH", "2.10.0+cpu")
    assert other_torch.asked() == "2.10.0+cpu"


@pytest.mark.parametrize(
    ("argv", "tests"), [([], list(other_torch.TESTS)), (["tests/unit/modes", "-k", "x"],) * 2]
)
def test_pytest_runs_there(
    checkout: Checkout, folder: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], tests: list[str]
) -> None:
    calls = []

    def become(argv: list[str | Path], **_: object) -> int:
        calls.append([str(word) for word in argv])
        return 5

    monkeypatch.setattr(other_torch, "Paths", lambda: Paths(checkout.root))
    monkeypatch.setattr(proc, "become", become)
    assert other_torch.main(argv) == 5
    python = venv.Venv(other_torch.place(Paths(checkout.root), "2.9.1")).python
    assert calls == [[str(python), "-m", "pytest", *tests]]
    assert all((REPOSITORY / each).exists() for each in other_torch.TESTS)


def test_purge_lists_it(checkout: Checkout, folder: Path) -> None:
    paths = Paths(checkout.root)
    there = other_torch.ensure(paths, "2.9.1", "")
    assert (str(there.path), "of make test-torch") in [
        (thing.name, thing.note.partition(", ")[2]) for thing in on_disk(paths)
    ]
