"""The Dockerfile says of each variant what the table of variants says."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from torchtap.variants import DEFAULT, VARIANTS, Variant

ROOT = Path(__file__).parents[3]
Stage = list[tuple[str, str]]
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}(?= )")  # written by `make pin`


def instructions(text: str) -> Stage:
    """(INSTRUCTION, arguments) in order, lines joined. Enough for this file: it has no here-documents."""
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", kept)
    return [
        (word.upper(), rest.strip())
        for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)
    ]


def stages(text: str) -> dict[str, Stage]:
    """Name of each stage and what is in it, its FROM first."""
    found: dict[str, Stage] = {}
    name = "before the first"
    for word, rest in instructions(text):
        if word == "FROM":
            name = rest.split(" AS ")[1] if " AS " in rest else "last"
        found.setdefault(name, []).append((word, rest))
    return found


DOCKERFILE = stages((ROOT / "Dockerfile").read_text())


def pairs(stage: str, word: str) -> dict[str, str]:
    """NAME=VALUE of all ENV, LABEL or ARG of a stage."""
    words = [piece for kind, rest in DOCKERFILE[stage] if kind == word for piece in shlex.split(rest)]
    return {name: value for name, _, value in (piece.partition("=") for piece in words)}


def labels_of(row: Variant) -> dict[str, str]:
    """What the labels have to say for a row of the table."""
    dotted = ".".join
    return {
        "torchtap.variant": row.name,
        "torchtap.torch": row.torch,
        "torchtap.cuda": row.cuda or "",
        "torchtap.cudnn": str(row.cudnn or ""),
        "torchtap.nccl": dotted(map(str, row.nccl or ())),
        "torchtap.arch_list": " ".join(row.arch_list),
        "torchtap.driver_floor": dotted(map(str, row.driver_floor or ())),
        "org.opencontainers.image.base.name": f"${{BASE_IMAGE:-{row.base}}}",
        "org.opencontainers.image.title": "torchtap",
        "org.opencontainers.image.description": "PyTorch with JupyterLab and SSH, and a self-test for the GPU",
        "org.opencontainers.image.licenses": "Apache-2.0",
    }


@pytest.mark.parametrize("name", VARIANTS)
def test_base_is_the_tables(name: str) -> None:
    ((word, rest),) = DOCKERFILE[f"variant-{name}"]
    assert (word, DIGEST.sub("", rest)) == ("FROM", f"{VARIANTS[name].base} AS variant-{name}")


@pytest.mark.parametrize("name", VARIANTS)
def test_labels_are_the_tables(name: str) -> None:
    assert pairs("app", "LABEL") | pairs(f"final-{name}", "LABEL") == labels_of(VARIANTS[name])


@pytest.mark.parametrize("name", VARIANTS)
def test_floor_of_the_driver_is_asked_for_on_purpose(name: str) -> None:
    """The base asks for its own minor version of CUDA, which is more than the wheels need."""
    environment = pairs(f"final-{name}", "ENV")
    assert environment.get("NVIDIA_REQUIRE_CUDA") == VARIANTS[name].require_cuda
    assert environment["NVIDIA_VISIBLE_DEVICES"] == ("all" if VARIANTS[name].cuda else "void")


def test_every_variant_has_its_stages_and_no_other_has() -> None:
    for prefix in ("variant-", "final-"):
        assert [name.removeprefix(prefix) for name in DOCKERFILE if name.startswith(prefix)] == list(VARIANTS)
    assert pairs("before the first", "ARG")["VARIANT"] == DEFAULT
    assert DOCKERFILE["last"] == [("FROM", "final-${VARIANT}")]


def test_no_base_brings_a_second_cudnn() -> None:
    """The wheels bring cuDNN, and two of them on one loader path are the classic fault."""
    froms = [rest for stage in DOCKERFILE.values() for word, rest in stage if word == "FROM"]
    bases = [DIGEST.sub("", rest) for rest in froms]
    cuda = [base for base in bases if base.startswith("nvidia/cuda")]
    assert len(cuda) == 3
    assert all(re.match(r"nvidia/cuda:[0-9.]+-base-ubuntu24\.04 ", base) for base in cuda)


def plain(text: str, variables: Mapping[str, str]) -> str:
    """Variables replaced as the dev container CLI does it: none inside another one's default."""

    def replace(match: re.Match[str]) -> str:
        value, option, word = variables.get(match[1], ""), match[2], match[3]
        return {":-": value or word, ":+": word if value else "", None: value}[option] or ""

    return re.sub(r"\$\{(\w+)(?:(:[-+])([^${}]*))?\}", replace, text)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("own", ["", "my/base:1"], ids=["the variant's base", "another base"])
def test_base_is_found_by_whoever_follows_the_from_lines(name: str, own: str) -> None:
    """The dev container CLI does, and pulls what it finds."""
    stage = "last"
    while stage in DOCKERFILE:
        stage = plain(DOCKERFILE[stage][0][1].split(" AS ")[0], {"VARIANT": name, "BASE_IMAGE": own})
    assert DIGEST.sub("", stage + " ").strip() == (own or VARIANTS[name].base)


def test_what_compares_the_wheels_with_the_table_comes_before_what_is_ours() -> None:
    """A build that is not what it says ends there."""
    runs = [rest for word, rest in DOCKERFILE["environment"] if word == "RUN"]
    assert "/build/manifest.py" in runs[-1]
    assert [re.search(r"install\.sh (\w+)", rest)[1] for rest in runs[:-1]] == ["torch", "lab"]  # type: ignore[index]
    assert DOCKERFILE["app"][0] == ("FROM", "environment AS app")


def test_layers_are_ordered_by_how_often_they_change() -> None:
    """A line changed in src/ leaves every layer but the last few as it was."""
    order = list(DOCKERFILE)
    assert order.index("os") < order.index("environment") < order.index("app") < order.index("final-cu130")
    for early in ("os", "environment"):
        copied = [rest for word, rest in DOCKERFILE[early] if word == "COPY" or "source=src," in rest]
        assert copied == []


def test_every_file_that_is_copied_or_mounted_is_there_and_let_through() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    needed = set()
    for stage in DOCKERFILE.values():
        for word, rest in stage:
            if word == "COPY" and "--from" not in rest:
                needed |= set(rest.split()[:-1])
            needed |= {
                source
                for mount in re.findall(r"--mount=type=bind,(\S+)", rest)
                if not mount.startswith("from=")
                for source in re.findall(r"source=([^,\s]+)", mount)
            }
    for path in needed:
        for name in VARIANTS if "${VARIANT}" in path else ("",):
            assert (ROOT / path.replace("${VARIANT}", name)).exists(), path
        assert f"!{path.split('/')[0]}" in ignored, path


def test_start_is_below_tini_which_adopts_orphans() -> None:
    """stop finds what was left behind below tini (docker/entrypoint/stop.py)."""
    app = dict(DOCKERFILE["app"])
    assert app["ENTRYPOINT"] == '["/usr/bin/tini", "-s", "--", "/opt/torchtap/bin/start"]'
    assert app["CMD"] == '["dev"]'
    assert app["STOPSIGNAL"] == "SIGTERM"
    assert app["EXPOSE"] == "8888 22"
    assert app["WORKDIR"] == "/workspace"


def test_programs_of_the_image_come_first_on_path_and_the_users_after_the_systems() -> None:
    """A bare `docker exec CONTAINER ls` is root's: nothing that the user can write may come before the system's."""
    first, *system, users, overlay, base = pairs("app", "ENV")["PATH"].split(":")
    assert first == "/opt/torchtap/bin"
    assert {"/usr/bin", "/bin", "/usr/sbin", "/sbin"} <= set(system)
    assert not [folder for folder in system if folder.startswith(("/opt", "/run", "/home"))]
    assert (users, overlay, base) == (
        "/run/torchtap/env/bin",  # the user's own packages, over the base
        "/opt/torchtap/overlay/bin",
        "/opt/torchtap/venv/bin",
    )


PROGRAMS = sorted((ROOT / "docker/rootfs/opt/torchtap/bin").iterdir())


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_programs_can_be_run_and_see_nothing_of_the_users_python(program: Path) -> None:
    """-I: no PYTHONPATH, no user site; -S: no site-packages. What the user installs cannot change start-up."""
    first, *rest = program.read_text().splitlines()
    assert os.access(program, os.X_OK)
    assert first in ("#!/bin/sh", "#!/bin/bash -p", "#!/usr/bin/python3 -IS")
    if "python3" in first:
        modules = re.findall(r"from entrypoint\.(\w+) import main", "\n".join(rest))
        assert len(modules) == 1
        assert (ROOT / f"docker/entrypoint/{modules[0]}.py").exists()
