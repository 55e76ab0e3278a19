"""The virtual environment: made from the locks, kept while they hold, repaired when it is not whole."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from host import disk, gpu, proc, venv
from host.gpu import Gpu, HostGpus
from host.paths import Paths
from host.show import Problem
from host.venv import choose, ensure, step
from tests.unit.host.checkout import Checkout
from torchtap.variants import VARIANTS

H200 = HostGpus(True, (590, 48, 1), (Gpu("0", "GPU-aa", "NVIDIA H200", (9, 0)),))
V100 = HostGpus(True, (590, 48, 1), (Gpu("0", "GPU-bb", "Tesla V100", (7, 0)),))
# A Python that makes environments of itself, notes what pip is asked for, and fails where a test says so.
FAKE_PYTHON = """\
#!{python} -IS
import json, os, sys
folder, argv = {folder!r}, sys.argv[1:]
state = json.load(open(folder + "/state.json"))
if argv[:2] == ["-m", "venv"]:
    place = argv[2]
    os.makedirs(place + "/bin")
    os.makedirs(place + "/lib")
    open(place + "/pyvenv.cfg", "w").close()
    os.symlink(folder + "/python", place + "/bin/python")
    open(place + "/bin/pip", "w").write("#!" + place + "/bin/python")
elif argv[:2] == ["-c", "import venv, ensurepip"]:
    sys.exit(state.get("ensurepip", 0))
elif "metadata" in argv[1]:
    print(state.get("torch", ""))
    sys.exit("torch" not in state)
elif argv[:3] == ["-m", "pip", "index"]:
    print(state.get("index", ""))
elif argv[:2] == ["-m", "pip"]:
    open(folder + "/pip.calls", "a").write(json.dumps(argv[2:]) + "\\n")
    if any(state.get("fails", "nothing") in word for word in argv):
        print("ERROR: no matching distribution", file=sys.stderr)
        sys.exit(1)
"""


class World:
    """A checkout with the fake Python."""

    def __init__(self, checkout: Checkout) -> None:
        self.folder = checkout.root.parent
        self.paths = Paths(checkout.root)
        self.say()
        program = self.folder / "python"
        program.write_text(FAKE_PYTHON.format(python=sys.executable, folder=str(self.folder)))
        program.chmod(0o755)

    def say(self, **state: object) -> None:
        (self.folder / "state.json").write_text(json.dumps(state))

    def pip(self) -> list[str]:
        """What pip was asked for since the last look, in short: the locks' names, or its verb."""
        file = self.folder / "pip.calls"
        calls = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        file.unlink(missing_ok=True)
        return [
            next(
                (Path(word).name for word in call if word.endswith(".lock")),
                "torchtap" if "--editable" in call else call[0],
            )
            for call in calls
        ]

    @property
    def stamp(self) -> Path:
        return self.paths.venv / venv.STAMP


@pytest.fixture
def world(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(checkout)
    monkeypatch.setattr(
        disk, "free_bytes", lambda _: 10**12
    )  # how full this machine is must not decide a test
    monkeypatch.setattr(sys, "executable", str(made.folder / "python"))
    return made


BASE = ["torch-cu130.lock", "lab.lock", "build.lock", "torchtap"]


def test_a_new_one_is_made_in_order_and_then_costs_nothing(world: World) -> None:
    place, variant = ensure(world.paths, host=HostGpus())
    assert variant.name == "cu130"
    assert place.path == world.paths.root / ".venv"
    assert world.pip() == BASE
    began = time.monotonic()
    ensure(world.paths, host=HostGpus())
    ensure(world.paths)
    assert time.monotonic() - began < 0.2
    assert world.pip() == []


def test_tools_for_tests_are_added_to_what_is_there_and_stay(world: World) -> None:
    ensure(world.paths, host=HostGpus())
    world.pip()
    ensure(world.paths, dev=True)
    assert world.pip() == ["dev.lock"]
    ensure(world.paths, host=HostGpus())
    ensure(world.paths, dev=True)
    assert world.pip() == []


def test_tools_for_tests_bring_no_other_torch(world: World) -> None:
    """dev.lock's torchvision asks for the default variant's torch; another variant keeps its own."""
    for name in (*BASE[:3], "dev.lock"):
        options = step(world.paths, name, VARIANTS["cu128"], "")[1]
        assert ("--no-deps" in options) == (name == "dev.lock")
    lock = (Path(__file__).parents[3] / "docker/requirements/dev.lock").read_text()
    assert not re.search(r"(?m)^(torch|triton|nvidia-\S+|cuda-\S+)==", lock)
    assert re.search(r"(?m)^torchvision==", lock)


def test_a_changed_lock_is_installed_and_the_others_are_not(world: World) -> None:
    ensure(world.paths, dev=True, host=HostGpus())
    world.pip()
    with (world.paths.requirements / "lab.lock").open("a") as file:
        file.write("# changed\n")
    ensure(world.paths, dev=True)
    assert world.pip() == ["lab.lock"]


@pytest.mark.parametrize("fails", ["torch-cu130.lock", "lab.lock", "--editable"])
def test_one_that_was_left_half_made_is_repaired(
    world: World, fails: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world.say(fails=fails)
    with pytest.raises(Problem, match="pip could not install") as caught:
        ensure(world.paths, host=HostGpus())
    assert caught.value.code == 1
    assert "ERROR: no matching distribution" in capsys.readouterr().err
    assert not world.stamp.exists()
    world.pip()
    world.say()
    ensure(world.paths, host=HostGpus())
    assert world.pip() == BASE
    assert world.stamp.exists()


def test_an_update_that_failed_half_way_is_not_taken_for_whole(world: World) -> None:
    """Undoing the change does not undo what pip did."""
    ensure(world.paths, host=HostGpus())
    world.pip()
    lock = world.paths.requirements / "lab.lock"
    before = lock.read_text()
    lock.write_text(before + "# changed\n")
    world.say(fails="lab.lock", torch="2.14.1")
    with pytest.raises(Problem):
        ensure(world.paths, host=HostGpus())
    lock.write_text(before)
    world.pip()
    world.say(torch="2.14.1")
    ensure(world.paths, host=HostGpus())
    assert world.pip() == BASE


def test_a_copy_in_another_place_is_not_taken_for_the_original(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure(world.paths, host=HostGpus())
    world.pip()
    shutil.copytree(world.paths.venv, world.folder / "copy", symlinks=True)
    monkeypatch.setenv("TORCHTAP_VENV", str(world.folder / "copy"))
    ensure(world.paths, host=HostGpus())
    assert world.pip() == BASE


def test_one_whose_python_is_gone_is_made_anew(world: World) -> None:
    ensure(world.paths, host=HostGpus())
    world.pip()
    (world.paths.venv / "bin/python").unlink()
    (world.paths.venv / "bin/python").symlink_to("/nonexistent/python3.9")
    (world.paths.venv / "left over").touch()
    ensure(world.paths, host=HostGpus())
    assert world.pip() == BASE
    assert not (world.paths.venv / "left over").exists()


def test_one_that_was_moved_is_made_anew(world: World) -> None:
    """Its scripts still name the old place."""
    ensure(world.paths, host=HostGpus())
    world.pip()
    moved = world.paths.root.with_name("moved")
    world.paths.root.rename(moved)
    ensure(Paths(moved), host=HostGpus())
    assert world.pip() == BASE
    assert str(moved) in (moved / ".venv/bin/pip").read_text()


def test_a_folder_that_is_no_environment_is_left_alone(world: World) -> None:
    world.paths.venv.mkdir()
    (world.paths.venv / "thesis.tex").write_text("precious")
    with pytest.raises(Problem, match=r"\.venv is there and is no virtual environment"):
        ensure(world.paths, host=HostGpus())
    assert (world.paths.venv / "thesis.tex").read_text() == "precious"


def test_debians_missing_package_is_named(world: World) -> None:
    world.say(ensurepip=1)
    with pytest.raises(Problem) as caught:
        ensure(world.paths, host=HostGpus())
    assert caught.value.do == (f"Debian and Ubuntu: sudo apt install python3.{sys.version_info.minor}-venv",)
    assert not world.paths.venv.exists()


def test_too_little_disk_is_found_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda _: 8_000_000_000)
    with pytest.raises(Problem, match=r"PyTorch cu130 with its packages needs 9\.0 GB, .* has 8\.0 GB free"):
        ensure(world.paths, host=HostGpus())
    assert not world.paths.venv.exists()


def test_the_cpu_wheels_are_taken_where_they_can_be_reached(world: World) -> None:
    world.say(index="torch (2.14.1+cpu)\nAvailable versions: 2.14.1+cpu, 2.13.0+cpu")
    assert ensure(world.paths, host=HostGpus())[1].name == "cpu"
    assert world.pip()[0] == "torch-cpu.lock"


def test_another_version_at_the_index_is_not_the_one_that_is_locked(world: World) -> None:
    world.say(index="torch (2.13.0+cpu)\nAvailable versions: 2.14.1, 2.13.0+cpu")
    assert ensure(world.paths, host=HostGpus())[1].name == "cu130"


def test_an_index_that_never_answers_costs_seconds_only(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(venv, "PROBE_TIMEOUT_S", 0.3)
    slow = world.folder / "slow"
    slow.write_text(f"#!{os.path.realpath('/bin/sh')}\nsleep 30\n")
    slow.chmod(0o755)
    began = time.monotonic()
    assert not venv.index_has_cpu_torch(slow, "")
    assert time.monotonic() - began < 5


def test_another_build_of_torch_is_removed_first(world: World) -> None:
    """pip would take an installed 2.14.1+cpu for the 2.14.1 that is asked for, and leave it."""
    ensure(world.paths, forced="cpu", host=HostGpus())
    world.pip()
    world.say(torch="2.14.1+cpu")
    assert ensure(world.paths, host=H200)[1].name == "cu130"
    assert world.pip() == ["uninstall", "torch-cu130.lock"]
    world.say(torch="2.14.1")
    ensure(world.paths, host=V100)
    assert world.pip() == ["uninstall", "torch-cu128.lock"]


def test_a_shared_home_does_not_swap_torch_at_every_turn(world: World) -> None:
    """What a GPU host installed serves the CPU host too."""
    ensure(world.paths, host=H200)
    world.pip()
    assert ensure(world.paths, host=HostGpus())[1].name == "cu130"
    assert ensure(world.paths, host=H200)[1].name == "cu130"
    assert world.pip() == []


def test_another_place_for_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHTAP_VENV", str(world.folder / "elsewhere"))
    place, _ = ensure(world.paths, host=HostGpus())
    assert place.path == world.folder / "elsewhere"
    assert not (world.paths.root / ".venv").exists()


def never() -> bool:
    raise AssertionError("the index was asked for nothing")


@pytest.mark.parametrize(
    ("forced", "host", "installed", "reachable", "name"),
    [
        ("cu128", HostGpus(), "cu130", never, "cu128"),
        ("", H200, "cpu", never, "cu130"),
        ("", V100, "cu130", never, "cu128"),
        ("", HostGpus(present=True, trouble="x"), "", never, "cu130"),
        ("", HostGpus(present=True, trouble="x"), "cu128", never, "cu128"),
        ("", HostGpus(), "cu128", never, "cu128"),
        ("", HostGpus(), "", lambda: True, "cpu"),
        ("", HostGpus(), "", lambda: False, "cu130"),
    ],
)
def test_which_torch(
    forced: str, host: HostGpus, installed: str, reachable: Callable[[], bool], name: str
) -> None:
    variant, why = choose(forced, host, installed, reachable)
    assert variant.name == name
    assert why


def test_locks_with_hashes_are_installed_with_hashes() -> None:
    _, options = step(Paths(), "torch-cu130.lock", VARIANTS["cu130"], "")
    assert options[0] == "--require-hashes"
    _, options = step(Paths(), "lab.lock", VARIANTS["cu130"], "")
    assert options[0] == "--require-hashes"
    _, options = step(Paths(), "torch-cpu.lock", VARIANTS["cpu"], "")
    assert options[:2] == ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]
    assert "--require-hashes" not in options
    _, options = step(Paths(), "torch-cpu.lock", VARIANTS["cpu"], "https://mirror.example/cpu")
    assert options[:2] == ["--extra-index-url", "https://mirror.example/cpu"]


def test_the_gpus_are_not_asked_for_by_tools_that_need_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure(world.paths, host=HostGpus())

    def fail() -> HostGpus:
        raise AssertionError("nvidia-smi was asked")

    monkeypatch.setattr(gpu, "look", fail)
    ensure(world.paths, dev=True)


def test_an_activated_environment_comes_first_on_the_path(tmp_path: Path) -> None:
    env = venv.Venv(tmp_path).environment({"PATH": "/usr/bin", "PYTHONHOME": "/x", "A": "1"})
    assert env == {"PATH": f"{tmp_path}/bin:/usr/bin", "VIRTUAL_ENV": str(tmp_path), "A": "1"}


def test_a_python_that_is_too_old_is_told_in_one_line(checkout: Checkout) -> None:
    """`sys.version_info` is replaced: an old Python is not at hand everywhere."""
    program = "import sys; sys.version_info = (3, 9, 2); sys.path.insert(0, 'scripts'); import host"
    done = checkout.call([sys.executable, "-c", program], None, 30)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "torchtap: needs Python 3.10 or newer, this is 3.9."
    assert proc.ask([sys.executable, "-c", "print(1)"]).ok
