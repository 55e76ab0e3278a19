"""The locks: complete for every Python that they are for, with hashes, and of one mind about what they share."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchtap.variants import VARIANTS

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docker/requirements"
LOCKS = sorted(path.name for path in FOLDER.glob("*.lock"))
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
WITHOUT_HASHES = {f"torch-{row.name}.lock" for row in VARIANTS.values() if row.index}
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Pin:
    """One line `name==version ; marker` with what follows it."""

    name: str
    version: str
    marker: Marker | None
    hashes: int

    def holds(self, python: str) -> bool:
        """On Linux, x86-64, with CPython of that version."""
        environment = {
            "python_version": python, "python_full_version": f"{python}.4", "implementation_version": f"{python}.4",
            "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64",
            "platform_python_implementation": "CPython", "implementation_name": "cpython", "extra": "",
        }  # fmt: skip
        return self.marker is None or self.marker.evaluate(environment)


def pins(lock: str) -> list[Pin]:
    text = re.sub(r" \\\n\s+", " ", (FOLDER / lock).read_text())
    found = []
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        requirement = Requirement(HASH.sub("", line).strip())
        (exact,) = requirement.specifier
        assert exact.operator == "==", line
        found.append(
            Pin(
                canonicalize_name(requirement.name),
                exact.version,
                requirement.marker,
                len(HASH.findall(line)),
            )
        )
    return found


def versions(lock: str, python: str) -> dict[str, set[str]]:
    """Project: its versions for one Python."""
    found = defaultdict(set)
    for pin in pins(lock):
        if pin.holds(python):
            found[pin.name].add(pin.version)
    return dict(found)


def asked_for(source: str) -> list[Requirement]:
    """The requirements of an .in file, those of files that it includes too."""
    found = []
    for raw in (FOLDER / source).read_text().splitlines():
        line = raw.partition("#")[0].strip()
        if line.startswith("-r "):
            found += asked_for(line.removeprefix("-r ").strip())
        elif line:
            found.append(Requirement(line))
    return found


# ---- which there are ----
def test_every_variant_has_its_lock_and_every_lock_its_source() -> None:
    assert {name for name in LOCKS if name.startswith("torch-")} == {
        f"torch-{name}.lock" for name in VARIANTS
    }
    assert {path.stem for path in FOLDER.glob("*.in")} == {name.removesuffix(".lock") for name in LOCKS}


@pytest.mark.parametrize("lock", LOCKS)
def test_head_names_the_source(lock: str) -> None:
    first = (FOLDER / lock).read_text().splitlines()[0]
    source = lock.replace(".lock", ".in")
    assert re.match(rf"# Made by `make lock` from {re.escape(source)}( and [\w.-]+)?\. Do not edit", first)


@pytest.mark.parametrize("lock", LOCKS)
def test_no_lock_names_a_machine_or_an_index(lock: str) -> None:
    text = (FOLDER / lock).read_text()
    assert "://" not in text
    assert not re.search(r"(?m)^\s*(-i|-f|--\w*index\S*|--find-links|--trusted-host)\b", text)
    assert not re.search(r"(?m)(^|\s)(/|[A-Z]:\\)\S+", text), "a path of the machine that made it"


# ---- hashes ----
@pytest.mark.parametrize("lock", sorted(set(LOCKS) - WITHOUT_HASHES))
def test_every_pin_has_hashes(lock: str) -> None:
    assert [pin.name for pin in pins(lock) if not pin.hashes] == []


@pytest.mark.parametrize("lock", sorted(WITHOUT_HASHES))
def test_a_lock_for_pytorchs_own_index_says_that_it_has_none(lock: str) -> None:
    assert not any(pin.hashes for pin in pins(lock))
    assert "# Exact versions without hashes" in (FOLDER / lock).read_text()


# ---- completeness ----
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("lock", LOCKS)
def test_what_is_asked_for_has_exactly_one_version(lock: str, python: str) -> None:
    found = versions(lock, python)
    for requirement in asked_for(lock.replace(".lock", ".in")):
        chosen = found.get(canonicalize_name(requirement.name), set())
        assert len(chosen) == 1, f"{requirement}: {chosen or 'none'}"
        assert requirement.specifier.contains(min(chosen), prereleases=True), f"{requirement}: {chosen}"


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("lock", LOCKS)
def test_nothing_has_two_versions(lock: str, python: str) -> None:
    assert {name: chosen for name, chosen in versions(lock, python).items() if len(chosen) > 1} == {}


@pytest.mark.parametrize("lock", LOCKS)
def test_what_has_a_version_for_each_of_several_pythons_has_one_for_all(lock: str) -> None:
    """A backport may be for old Pythons alone; what is split between old and new must leave no gap."""
    where = {python: set(versions(lock, python)) for python in PYTHONS}
    anywhere = set.union(*where.values())
    named = [pin.name for pin in pins(lock)]
    split = {name for name in anywhere if named.count(name) > 1}
    assert {python: split - found for python, found in where.items() if split - found} == {}


def test_splits_are_seen_at_all() -> None:
    """The checks above could not fail if every marker held everywhere."""
    assert (
        versions("torch-cu130.lock", "3.10")["networkx"] != versions("torch-cu130.lock", "3.14")["networkx"]
    )


# ---- agreement ----
def together(locks: tuple[str, ...], python: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for lock in locks:
        for name, chosen in versions(lock, python).items():
            found[name] |= chosen
    return {name: chosen for name, chosen in found.items() if len(chosen) > 1}


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_one_lab_fits_beside_every_variant(variant: str, python: str) -> None:
    assert together((f"torch-{variant}.lock", "lab.lock"), python) == {}


@pytest.mark.parametrize("python", PYTHONS)
def test_tools_of_the_project_fit_beside_the_lab_and_the_default_torch(python: str) -> None:
    assert together(("torch-cu130.lock", "lab.lock", "dev.lock", "build.lock"), python) == {}


# ---- the table of variants, and pyproject ----
@pytest.mark.parametrize("name", VARIANTS)
def test_torch_is_the_tables(name: str) -> None:
    row = VARIANTS[name]
    expected = f"{row.torch}+{name}" if row.index else row.torch
    for python in PYTHONS:
        assert versions(f"torch-{name}.lock", python)["torch"] == {expected}


@pytest.mark.parametrize("name", [row.name for row in VARIANTS.values() if row.cuda and not row.index])
def test_cudnn_and_nccl_are_the_tables(name: str) -> None:
    """As torch.backends.cudnn.version() counts: 9.24.0 is 92400."""
    row = VARIANTS[name]
    found = versions(f"torch-{name}.lock", "3.12")
    major = (row.cuda or "").split(".")[0]
    (cudnn,) = found[f"nvidia-cudnn-cu{major}"]
    (nccl,) = found[f"nvidia-nccl-cu{major}"]
    parts = Version(cudnn).release
    assert parts[0] * 10_000 + parts[1] * 100 + parts[2] == row.cudnn
    assert Version(nccl).release == row.nccl


def table(name: str) -> str:
    """A table of pyproject.toml as text: tomllib needs Python 3.11."""
    text = (ROOT / "pyproject.toml").read_text()
    return text.partition(f"\n[{name}]\n")[2].partition("\n[")[0]


@pytest.mark.parametrize("python", PYTHONS)
def test_pins_are_what_the_package_asks_for(python: str) -> None:
    listed = re.search(r"^dependencies = \[(.*?)\]", table("project"), re.MULTILINE | re.DOTALL)
    assert listed
    found = {**versions("lab.lock", python), **versions("torch-cu128.lock", python)}
    for requirement in map(Requirement, re.findall(r'"([^"]+)"', listed[1])):
        (chosen,) = found[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(chosen), f"{requirement}: {chosen}"


def test_the_builder_is_the_one_that_pyproject_names() -> None:
    named = re.search(r'requires = \["(hatchling==[^"]+)"\]', (ROOT / "pyproject.toml").read_text())
    assert named
    assert {str(r) for r in asked_for("build.in") if r.name == "hatchling"} == {named[1]}


def test_pythons_are_those_that_the_package_supports() -> None:
    stated = re.search(r'requires-python = "([^"]+)"', (ROOT / "pyproject.toml").read_text())
    assert stated
    assert all(SpecifierSet(stated[1]).contains(python) for python in PYTHONS)
    assert not SpecifierSet(stated[1]).contains("3.9")
