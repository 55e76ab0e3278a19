"""The build's scripts, with stand-ins for uv, curl and the folders of the image."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from torchtap.variants import VARIANTS

ROOT = Path(__file__).parents[3]
BUILD = ROOT / "docker/build"
INSTALL = (BUILD / "install.sh").read_text()


@pytest.mark.parametrize("script", sorted(BUILD.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_well_formed_for_a_plain_shell(script: Path) -> None:
    subprocess.run(["sh", "-n", str(script)], check=True)
    assert script.read_text().startswith("#!/bin/sh\n")


# ---- packages.txt ----
PACKAGES = [
    line for line in (ROOT / "docker/packages.txt").read_text().splitlines() if line and line[0] != "#"
]


@pytest.mark.parametrize("line", PACKAGES, ids=lambda line: line.split()[0])
def test_a_package_is_a_name_and_if_need_be_a_reason(line: str) -> None:
    assert re.fullmatch(r"[a-z0-9][a-z0-9+.-]+( +# \S.*)?", line)


def test_no_package_is_named_twice_and_what_start_up_runs_is_there() -> None:
    names = [line.split()[0] for line in PACKAGES]
    assert len(set(names)) == len(names)
    assert {
        "python3",  # every program of the image
        "tini",  # PID 1
        "s6",
        "openssh-server",
        "openssh-client",  # ssh-keygen makes the host key
        "libnss-extrausers",
        "tmux",
        "screen",
        "g++",  # torch.compile
        "python3-dev",
        "ca-certificates",
        "curl",  # install.sh asks whether TORCH_INDEX can be reached
    } <= set(names)


# ---- install.sh ----
class Sandbox:
    """install.sh with its absolute folders moved below a temporary one, and programs that only note their words."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.script = folder / "install.sh"
        moved = INSTALL.replace("/opt/torchtap", f"{folder}/opt/torchtap")
        self.script.write_text(moved.replace("/tools/", f"{folder}/tools/"))
        (folder / "tools").mkdir()
        (folder / "tools/ca.sh").write_text((BUILD / "ca.sh").read_text())
        site = folder / "opt/torchtap/venv/lib/python3.12/site-packages"
        for name in ("triton/_C/libtriton.so", "triton/backends/nvidia/lib/cupti/libcupti_static.a"):
            (site / name).parent.mkdir(parents=True)
            (site / name).touch()
        self.site = site
        self.program("tools/bin/uv", "")
        self.program("bin/curl", "")
        self.program("bin/strip", "")
        self.program("opt/torchtap/venv/bin/python", "")

    def program(self, name: str, then: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "{path.name} $*" >>"{self.log}"\n{then}\n')
        path.chmod(0o755)

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", **variables}
        return subprocess.run(
            ["sh", str(self.script), *words], env=environment, capture_output=True, text=True, check=False
        )

    @property
    def said(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


@pytest.mark.parametrize("name", VARIANTS)
def test_torch_comes_from_the_index_that_the_table_names(sandbox: Sandbox, name: str) -> None:
    index = VARIANTS[name].index
    done = sandbox.run("torch", "torch.lock", VARIANT=name, TORCH_INDEX="")
    assert done.returncode == 0, done.stderr
    installs = [line for line in sandbox.said if line.startswith("uv pip install")]
    asked = [line for line in sandbox.said if line.startswith("curl")]
    if index is None:
        assert installs == ["uv pip install --quiet --require-hashes -r torch.lock"]
        assert asked == []
    else:
        assert installs == [
            f"uv pip install --quiet --index {index} --index-strategy unsafe-best-match -r torch.lock"
        ]
        assert len(asked) == 1
        assert asked[0].endswith(f" {index}/torch/")


def test_a_mirror_replaces_the_index_of_any_variant(sandbox: Sandbox) -> None:
    for name in ("cu130", "cpu"):
        sandbox.run("torch", "torch.lock", VARIANT=name, TORCH_INDEX="https://mirror.example/whl")
    installs = [line for line in sandbox.said if line.startswith("uv pip install")]
    assert len(installs) == 2
    assert all("--index https://mirror.example/whl " in line for line in installs)


def test_an_index_out_of_reach_ends_the_build_with_what_to_do(sandbox: Sandbox) -> None:
    sandbox.program("bin/curl", "echo 'curl: (6) Could not resolve host' >&2; exit 6")
    done = sandbox.run("torch", "torch.lock", VARIANT="cpu", TORCH_INDEX="https://mirror.example/whl")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "curl: (6) Could not resolve host",
        "torchtap: TORCH_INDEX https://mirror.example/whl cannot be reached from this build (curl says why, above). "
        "Give a mirror that can: --build-arg TORCH_INDEX=URL; or VARIANT=cu130 or cu128, which do not need that index.",
    ]
    assert not [line for line in sandbox.said if line.startswith("uv pip install")]


def test_a_page_that_says_no_is_an_index_out_of_reach() -> None:
    """A proxy that forbids the index answers too: --fail makes that an error of curl's."""
    assert re.search(r"curl [^\n]*--fail\b", INSTALL)


def test_variants_that_are_recommended_instead_need_no_index() -> None:
    recommended = re.findall(r"VARIANT=(\w+) or (\w+), which do not need that index", INSTALL)[0]
    assert set(recommended) == {row.name for row in VARIANTS.values() if row.index is None}


def test_the_lab_is_installed_with_hashes_only(sandbox: Sandbox) -> None:
    assert sandbox.run("lab", "lab.lock", VARIANT="cu130").returncode == 0
    assert "uv pip install --quiet --require-hashes -r lab.lock" in sandbox.said


def test_torchtap_itself_is_installed_without_a_network(sandbox: Sandbox) -> None:
    assert sandbox.run("torchtap", "/wheel/torchtap.whl", VARIANT="cu130").returncode == 0
    assert "uv pip install --quiet --offline --no-deps /wheel/torchtap.whl" in sandbox.said


def test_static_libraries_are_left_out_and_caches_removed(sandbox: Sandbox) -> None:
    cache = sandbox.folder / "opt/torchtap/.uv"
    cache.mkdir()
    assert sandbox.run("torch", "torch.lock", VARIANT="cu130").returncode == 0
    assert not list(sandbox.site.rglob("*.a"))
    assert not cache.exists()


def test_an_unknown_part_is_named(sandbox: Sandbox) -> None:
    done = sandbox.run("everything", "x", VARIANT="cu130")
    assert done.returncode == 1
    assert done.stderr == "torchtap: install.sh: unknown part 'everything'\n"


# ---- ca.sh ----
def test_certificates_reach_every_client_and_only_where_they_are_given(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    script = (BUILD / "ca.sh").read_text().replace("/run/secrets/ca_bundle", str(bundle))
    show = "env | grep -E '^(SSL_CERT_FILE|PIP_CERT|CURL_CA_BUNDLE|REQUESTS_CA_BUNDLE)=' | sort"

    def seen() -> list[str]:
        done = subprocess.run(
            ["sh", "-c", f"{script}\n{show}"],
            env={"PATH": os.defpath},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.split()

    assert seen() == []
    bundle.touch()
    assert seen() == [], "an empty secret is none"
    bundle.write_text("-----BEGIN CERTIFICATE-----\n")
    names = ("CURL_CA_BUNDLE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
    assert seen() == [f"{name}={bundle}" for name in names]


# ---- os.sh ----
@pytest.mark.parametrize(
    ("python", "says"),
    [
        (
            None,
            "torchtap: BASE_IMAGE has no python3 of 3.10 or newer, and no apt-get to install one. "
            "Give a Debian (12 or newer) or Ubuntu (22.04 or newer) image.\n",
        ),
        (1, "torchtap: BASE_IMAGE has no python3 of 3.10 or newer, and no apt-get to install one. "
            "Give a Debian (12 or newer) or Ubuntu (22.04 or newer) image.\n"),
        (
            0,
            "torchtap: BASE_IMAGE has no apt-get. Give a Debian (12 or newer) or Ubuntu (22.04 or newer) image.\n",
        ),
    ],
    ids=["no python3", "an old python3", "a python3 and no apt-get"],
)  # fmt: skip
def test_a_base_that_cannot_do_is_named(tmp_path: Path, python: int | None, says: str) -> None:
    if python is not None:
        (tmp_path / "python3").write_text(f"#!/bin/sh\nexit {python}\n")
        (tmp_path / "python3").chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(BUILD / "os.sh"), str(ROOT / "docker/packages.txt")],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, says)
