"""Packages of one's own: over the image's, the same python everywhere, the image's own never changed.

Numbers c9 to c15 are those of the public faults in docs/complaints.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.engine import Engine

from .conftest import KERNEL_CLIENT, Container, Run, containers, wait_until
from .wheels import lab_extension, plain, wheel

WHEELS = "/tmp/wheels"
OFFLINE = ("--no-index", f"--find-links={WHEELS}", "--quiet")
OVERLAY = "/run/torchtap/env"
# Kind, mode, size, time of the last change and name of every file; and the content of all below 4 MB.
FINGERPRINT = (
    "cd /opt/torchtap && { find venv overlay -printf '%y %m %s %C@ %p\\n' | sort; "
    "find venv overlay -type f -size -4096k -print0 | sort -z | xargs -0 sha256sum; } | sha256sum"
)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    folder.chmod(0o755)
    plain(folder, "one", "1.0")
    plain(folder, "two", "1.0")
    lab_extension(folder)
    wheel(folder, "needs_torch", "1.0", {"needs_torch.py": "import torch\n"}, requires=("torch>=2",))
    wheel(folder, "needs_old_torch", "1.0", {"needs_old_torch.py": ""}, requires=("torch<2",))
    for name, version in (("numpy", "9.0"), ("torch", "1.13"), ("torch", "99.0"), ("triton", "1.0")):
        wheel(folder, name, version, {f"{name}/__init__.py": f"__version__ = {version!r}\n"})
    return folder


def give(container: Container, wheels: Path) -> Container:
    """The wheels, readable by everybody."""
    container.engine.docker("cp", str(wheels), f"{container.id}:{WHEELS}")
    container.exec("chmod", "-R", "a+rX", WHEELS, root=True)
    return container


@pytest.fixture(scope="module")
def lived_in(engine: Engine, image: str, ssh_key: Path, wheels: Path) -> Iterator[Container]:
    """A container in which tests install, each what no other looks at; the image's own is the same before and after."""
    with containers(engine, image, ssh_key) as start:
        container = give(start(key=True, env={"TORCHTAP_SELFTEST": "off"}).wait_healthy(), wheels)
        before = container.exec("sh", "-c", FINGERPRINT, root=True).stdout
        yield container
        assert container.exec("sh", "-c", FINGERPRINT, root=True).stdout == before, "the base has changed"


def where(container: Container, module: str) -> str:
    return container.python(f"import {module}; print({module}.__file__)")


@pytest.mark.every_variant
def test_pip_over_ssh_is_seen_everywhere_and_the_running_kernel_too(lived_in: Container) -> None:
    """One interpreter: kernels, SSH, `docker exec` as dev or not; its programs are on every PATH."""
    status, running = lived_in.api("/api/kernels", lived_in.token, "POST", {"name": "python3"})
    assert status == 201
    lived_in.ssh(f"pip install {' '.join(OFFLINE)} one")
    said = "import one, sys; print(one.version, sys.prefix, one.__file__.startswith(sys.prefix))"
    expected = f"1.0 {OVERLAY} True"
    code = KERNEL_CLIENT.format(id=running["id"], code=said, wait=True)
    assert lived_in.python(code) == expected
    assert lived_in.kernel(said) == expected
    assert lived_in.python(said) == expected
    assert lived_in.exec("python", "-c", said, root=True).stdout.strip() == expected
    assert lived_in.ssh("python -", input=said).stdout.strip() == expected
    for program in ("one", "bash -lc one"):
        assert lived_in.ssh(program).stdout == "one 1.0\n"
    assert lived_in.exec("one").stdout == "one 1.0\n"


@pytest.mark.every_variant
@pytest.mark.parametrize("tool", [("pip",), ("uv", "pip")], ids=" ".join)
def test_a_package_of_the_image_is_replaced_and_comes_back(
    lived_in: Container, tool: tuple[str, ...]
) -> None:
    lived_in.exec(*tool, "install", *OFFLINE, "numpy==9.0")
    assert where(lived_in, "numpy").startswith(OVERLAY)
    yes = ("-y",) if tool == ("pip",) else ()
    lived_in.exec(*tool, "uninstall", *yes, "numpy")
    assert where(lived_in, "numpy").startswith("/opt/torchtap/venv/")
    assert "are compatible" in lived_in.exec("uv", "pip", "check").stderr
    assert lived_in.exec("pip", "check").stdout == "No broken requirements found.\n"


@pytest.mark.every_variant
@pytest.mark.parametrize("tool", [("pip",), ("uv", "pip")], ids=" ".join)
def test_c10_torch_stays_and_what_needs_it_takes_the_images(
    lived_in: Container, tool: tuple[str, ...]
) -> None:
    """images.md 10: a dependency on torch must not swap it, not even for a newer one when all is to be upgraded."""
    before = where(lived_in, "torch")
    eager = ("-U", "--upgrade-strategy", "eager") if tool == ("pip",) else ("-U",)
    lived_in.exec(*tool, "install", *OFFLINE, *eager, "needs_torch")
    assert where(lived_in, "torch") == before
    assert before.startswith("/opt/torchtap/venv/")
    yes = ("-y",) if tool == ("pip",) else ()
    lived_in.exec(*tool, "uninstall", *yes, "needs_torch")


@pytest.mark.every_variant
@pytest.mark.parametrize("tool", ["pip", "uv pip", "python -m pip"])
@pytest.mark.parametrize("package", ["torch==1.13", "triton==1.0", "needs_old_torch"])
def test_c11_who_is_stopped_by_the_pin_is_told_so(lived_in: Container, tool: str, package: str) -> None:
    """images.md 11: the tool's own error first, then the pin and the one command that lifts it."""
    words = [*tool.split(), "install", *(option for option in OFFLINE if option != "--quiet"), package]
    refused = lived_in.exec(*words, check=False)
    assert refused.returncode == 1
    assert where(lived_in, "torch").startswith("/opt/torchtap/venv/")
    error, _, note = refused.stderr.partition("note: ")
    assert "ResolutionImpossible" in error or "unsatisfiable" in error
    if tool != "python -m pip":  # the documentation says it for that one
        name = "triton" if "triton" in package else "torch"
        assert re.match(rf"{name} [\d.]+ is pinned: ", note)
        assert note.endswith("To lift the pin, knowingly:  torchtap-env unpin\n")


def test_a_failure_that_has_nothing_to_do_with_the_pin_gets_no_note(lived_in: Container) -> None:
    for tool in (("pip",), ("uv", "pip")):
        refused = lived_in.exec(*tool, "install", *OFFLINE, "no-such-package", check=False)
        assert refused.returncode == 1
        assert "pinned" not in refused.stderr


def test_uv_leaves_environments_of_ones_own_alone(lived_in: Container) -> None:
    """c12, c15: a project's own .venv takes any torch; neither wrapper nor pin has a say in it."""
    made = "rm -rf /tmp/mine && mkdir -p /tmp/mine/deep && cd /tmp/mine && uv venv -q && cd deep && "
    lived_in.exec("sh", "-c", f"{made} uv pip install {' '.join(OFFLINE)} torch==1.13 two")
    listed = lived_in.exec("sh", "-c", "ls /tmp/mine/.venv/lib/python3*/site-packages").stdout.split()
    assert {"torch", "two.py"} <= set(listed)
    assert where(lived_in, "torch").startswith("/opt/torchtap/venv/")
    assert "two" not in lived_in.exec("torchtap-env", "list").stdout


def test_root_installs_as_the_user(lived_in: Container) -> None:
    """`docker exec CONTAINER pip install` is root by default; root's files in the home would be in the way later."""
    lived_in.exec("pip", "install", *OFFLINE, "two", root=True)
    owners = lived_in.exec("sh", "-c", f"find {OVERLAY}/ -not -user dev", root=True).stdout
    assert owners == ""


@pytest.mark.every_variant
def test_every_spelling_of_pip_leaves_the_base_alone(lived_in: Container) -> None:
    """pip3.12 of the base itself would change it, as root. And python3.12 is the python that knows torch."""
    names = lived_in.exec("sh", "-c", "cd /opt/torchtap/venv/bin && ls -d pip pip[0-9]* python[0-9]*").stdout
    for name in names.split():
        found = lived_in.exec("sh", "-c", f"command -v {name}").stdout
        assert found == f"/opt/torchtap/bin/{name}\n"
        if name.startswith("pip"):
            lived_in.exec(name, "install", *OFFLINE, "--force-reinstall", "two", root=True)
            assert where(lived_in, "two").startswith(OVERLAY)
            lived_in.exec(name, "uninstall", "-y", "--quiet", "two", root=True)
        else:
            lived_in.exec(name, "-c", "import torch, sys; assert sys.prefix == '/run/torchtap/env'")


@pytest.mark.parametrize(
    "words",
    [
        "--python python",
        "-p {python}",
        "-p /run/torchtap/env",
        "--prefix /run/torchtap/env",
        "--dry-run",
        "VIRTUAL_ENV",
    ],
)
def test_c11_uv_told_the_overlay_in_other_words_has_the_pin(lived_in: Container, words: str) -> None:
    """images.md 11: and the note."""
    python = lived_in.python("import sys; print('%d.%d' % sys.version_info[:2])")
    told = f"VIRTUAL_ENV={OVERLAY} uv pip install" if words == "VIRTUAL_ENV" else f"uv pip install {words}"
    command = f"{told.format(python=python)} {' '.join(OFFLINE)} torch==1.13"
    refused = lived_in.exec("sh", "-c", command, check=False)
    assert refused.returncode == 1
    assert "To lift the pin" in refused.stderr
    assert where(lived_in, "torch").startswith("/opt/torchtap/venv/")


@pytest.mark.parametrize("tool", ["pip uninstall -y", "uv pip uninstall"])
def test_who_uninstalls_what_is_the_images_is_told_that_it_stays(lived_in: Container, tool: str) -> None:
    said = lived_in.exec(*tool.split(), "torch").stderr
    assert re.search(r"note: the image's own torch [\d.+a-z]+ stays: it is part of the image\n", said)
    assert where(lived_in, "torch").startswith("/opt/torchtap/venv/")


def test_roots_files_in_the_overlay_stop_nobody(run: Run, wheels: Path) -> None:
    """`docker exec CONTAINER python -m pip install` as root: reset goes on, root removes the rest, start mends it."""
    container = ready(give(run("sleep", "infinity"), wheels))
    install = ("python", "-m", "pip", "install", *OFFLINE, "--root-user-action=ignore", "one")
    container.exec(*install, root=True)
    done = container.exec("torchtap-env", "reset", "--yes")
    assert "removed 1 package. What there was: " in done.stdout
    assert "could not be removed" in done.stderr
    assert container.exec("torchtap-env", "list").stdout == ""
    assert "kept" not in container.exec("torchtap-env").stdout
    container.exec("torchtap-env", root=True)
    assert container.exec("sh", "-c", "ls -d /home/dev/.local/share/torchtap/env/.cu* || :").stdout == ""
    container.exec(*install, root=True)
    container.engine.docker("restart", "-t", "1", container.id)
    container.wait_log("files of root's in /home/dev/.local/share/torchtap/env are the user's again", 30)
    ready(container).exec("pip", "uninstall", "-y", "one")


def test_root_looks_for_nothing_in_the_users_folder(lived_in: Container) -> None:
    """Supervision is root's and finds programs by name: not where the user can put one."""
    for pid in lived_in.exec("pgrep", "-u", "root", "s6-", root=True).stdout.split():
        environment = lived_in.exec("cat", f"/proc/{pid}/environ", root=True).stdout
        assert "/env/bin" not in environment.partition("PATH=")[2].partition("\0")[0]


def test_c13_one_cudnn_is_loaded_and_it_is_the_images(lived_in: Container) -> None:
    """images.md 13: whatever the loader path says, the mapped files are those of torch's own wheel."""
    code = (
        "import torch\n"
        "print(*{l.split()[-1] for l in open('/proc/self/maps') if 'libcudnn' in l or 'libnccl' in l}, sep='\\n')"
    )
    files = lived_in.python(code).split()
    assert files
    assert all(file.startswith("/opt/torchtap/venv/") for file in files)


def test_extensions_installed_there_load_in_jupyterlab(run: Run, wheels: Path) -> None:
    """Both halves: the browser's is offered, the server's answers. Kernels and extensions of the image are still there.

    And (c15) installing needs neither sudo nor a flag.
    """
    container = give(run("jupyter", env={"TORCHTAP_SELFTEST": "off"}).wait_healthy(), wheels)
    container.exec("pip", "install", *OFFLINE, "labdemo")
    container.engine.docker("restart", container.id)
    container.wait_healthy()
    assert container.api("/labdemo", container.token) == (200, {"labdemo": "answers"})
    _, extensions = container.api("/lab/api/extensions", container.token)
    names = {each["name"] for each in extensions}
    assert {"labdemo", "jupyter-widgets-jupyterlab-manager"} <= names
    _, kernels = container.api("/api/kernelspecs", container.token)
    assert "python3" in kernels["kernelspecs"]


def test_a_package_that_breaks_jupyterlab_is_left_out_aloud(run: Run, wheels: Path, tmp_path: Path) -> None:
    """A broken overlay: it dies twice, then the base alone serves; the data stay; the self-test names the cause."""
    broken = wheel(
        tmp_path, "traitlets", "99.0", {"traitlets/__init__.py": "raise ImportError('broken on purpose')\n"}
    )
    container = give(
        run(
            "jupyter",
            env={"TORCHTAP_SELFTEST": "off"},
            allow=(
                r"ERROR   jupyter: ended 2 times at its start with your packages",
                r"Traceback",
                "WARNING jupyter: ended",
            ),
        ).wait_healthy(),
        wheels,
    )
    container.engine.docker("cp", str(broken), f"{container.id}:{WHEELS}/")
    container.exec("pip", "install", *OFFLINE, "--no-deps", "traitlets==99.0", "one")
    container.engine.docker("restart", container.id)
    container.wait_log("image's own alone", 60)
    container.wait_healthy()
    assert "broken on purpose" in container.logs
    status, kernel = container.api("/api/kernels", container.token, "POST", {"name": "python3"})
    assert status == 201
    code = KERNEL_CLIENT.format(id=kernel["id"], code="import sys; print(sys.prefix)", wait=True)
    assert container.exec("/opt/torchtap/venv/bin/python", "-", input=code).stdout == "/opt/torchtap/venv\n"
    assert "one==1.0" in container.exec("torchtap-env", "list").stdout
    container.exec("pip", "uninstall", "-y", "traitlets")
    container.engine.docker("restart", container.id)
    container.wait_healthy()
    assert OVERLAY in container.kernel("import sys; print(sys.prefix)")


def test_a_package_that_ends_jupyterlab_with_exit_code_0_is_left_out_too(
    run: Run, wheels: Path, tmp_path: Path
) -> None:
    """At its import; a JupyterLab that was shut down twice in a minute is not mistaken for that."""
    ends = wheel(tmp_path, "traitlets", "99.0", {"traitlets/__init__.py": "import os; os._exit(0)\n"})
    container = give(
        run(
            "jupyter",
            env={"TORCHTAP_SELFTEST": "off"},
            allow=(r"ERROR   jupyter: ended 2 times at its start with your packages",),
        ).wait_healthy(),
        wheels,
    )

    def answers() -> bool:  # Docker's own state lags behind
        return container.exec("/opt/torchtap/bin/health", check=False).returncode == 0

    for times in (1, 2):
        container.api("/api/shutdown", container.token, "POST", {})
        container.wait_log(rf"(?s)(ended \(exit code 0\).*){{{times}}}", 20)
        wait_until(answers, 30, lambda: container.logs)
    assert OVERLAY in container.kernel("import sys; print(sys.prefix)")
    container.engine.docker("cp", str(ends), f"{container.id}:{WHEELS}/")
    container.exec("pip", "install", *OFFLINE, "--no-deps", "traitlets==99.0")
    container.engine.docker("restart", container.id)
    container.wait_log("image's own alone", 60)
    container.wait_healthy()


def selftest(container: Container) -> dict[str, object]:
    done = container.exec(
        "torchtap", "selftest", "--device", "cpu", "--only", "torch.build", "--json", check=False
    )
    return {each["id"]: each for each in json.loads(done.stdout)["results"]}["torch.build"]  # type: ignore[no-any-return]


def test_drift_is_named_with_the_file_and_reset_brings_the_image_back(run: Run, wheels: Path) -> None:
    """c10: a torch over the image's, once the pin is lifted; then one that cannot be imported; then reset."""
    container = ready(give(run("sleep", "infinity"), wheels))
    assert selftest(container)["status"] == "pass"
    container.exec("torchtap-env", "unpin")
    container.exec("pip", "install", *OFFLINE, "triton==1.0")
    drifted = selftest(container)
    assert (drifted["status"], drifted["cause_id"]) == ("warn", "torch_drift")
    assert re.search(
        rf"triton 1\.0 instead of [\d.]+, from {OVERLAY}/lib/python3\.\d+/site-packages/triton/",
        str(drifted["cause"]),
    )
    container.exec("pip", "install", *OFFLINE, "torch==1.13")
    assert selftest(container)["status"] == "fail"
    assert "hides the image's" in container.exec("torchtap-env").stdout
    container.exec("torchtap-env", "reset", "--yes")
    assert selftest(container)["status"] == "pass"


def test_a_broken_overlay_is_a_finding_and_reset_works_in_it(run: Run, wheels: Path) -> None:
    """Modules of Python's own and of the self-test, broken by the user: one failed check with a cause, no traceback."""
    container = ready(give(run("sleep", "infinity"), wheels))
    container.exec("sh", "-c", f"cd {OVERLAY}/lib/python3*/site-packages && for name in rich typer typing_extensions; "
                   "do echo 'raise ImportError(\"broken on purpose\")' > $name.py; done")  # fmt: skip
    found = selftest(container)
    assert (found["status"], found["cause_id"]) == ("fail", "torch_missing")
    assert "broken on purpose" in str(found["cause"])
    assert str(found["remedy"]).splitlines()[-1].startswith("torchtap-env reset")
    container.exec("sh", "-c", f"rm {OVERLAY}/bin/python && ln -s /nowhere {OVERLAY}/bin/python")
    assert selftest(container)["cause_id"] == "python_broken"
    container.exec("torchtap-env", "reset", "--yes")
    assert selftest(container)["status"] == "pass"


def test_c9_a_torch_in_the_users_own_site_is_not_seen(run: Run, image: str) -> None:
    """images.md 9: ~/.local of a persistent home, filled by another image with `pip install --user`."""
    python = "import sys; print('%d.%d' % sys.version_info[:2])"
    container = ready(run("sleep", "infinity"))
    version = container.exec("/usr/bin/python3", "-c", python).stdout.strip()
    folder = f"/home/dev/.local/lib/python{version}/site-packages/torch"
    container.exec("sh", "-c", f"mkdir -p {folder} && echo 'raise ImportError(1)' > {folder}/__init__.py")
    assert where(container, "torch").startswith("/opt/torchtap/venv/")
    enabled = container.exec("python", "-c", "import site; print(site.ENABLE_USER_SITE)")
    assert enabled.stdout == "False\n"
    refused = container.exec("pip", "install", "--user", "one", check=False)
    assert "User site-packages are not visible in this virtualenv" in refused.stderr


@pytest.fixture
def volume(engine: Engine) -> Iterator[str]:
    """A home for several containers; gone after them (asked for before `run`)."""
    name = engine.docker("volume", "create").stdout.strip()
    yield name
    engine.docker("volume", "rm", "-f", name, check=False)


def ready(container: Container) -> Container:
    """Start has laid the overlay."""
    has_python = ("test", "-e", f"{OVERLAY}/bin/python")
    wait_until(lambda: container.exec(*has_python, check=False).returncode == 0, 30, lambda: container.logs)
    return container


def test_safe_start_uses_the_image_alone_and_keeps_what_is_installed(
    volume: str, run: Run, wheels: Path
) -> None:
    home = ("-v", f"{volume}:/home/dev")
    first = ready(give(run("sleep", "infinity", options=home), wheels))
    first.exec("pip", "install", *OFFLINE, "one")
    safe = run("jupyter", env={"TORCHTAP_SAFE": "1", "TORCHTAP_SELFTEST": "off"}, options=home).wait_healthy()
    assert "INFO    packages: TORCHTAP_SAFE=1: started without yours (1 in /home/dev/" in safe.logs
    assert "/opt/torchtap/venv" in safe.kernel("import sys; print(sys.prefix)")
    assert safe.exec("python", "-c", "import one", check=False).returncode == 1
    assert "python does not see now" in safe.exec("pip", "uninstall", "-y", "one").stderr
    assert "one" not in first.exec("torchtap-env", "list").stdout
    # As the container's command: found, although it is in no image.
    first.exec("pip", "install", *OFFLINE, "one")
    assert run("one", options=home).wait_end() == 0


def test_an_older_images_packages_are_kept_named_once_and_restored(
    volume: str, engine: Engine, run: Run, wheels: Path
) -> None:
    """Another torch, CUDA or Python begins a new overlay; nothing of the old one is lost."""
    home = ("-v", f"{volume}:/home/dev")
    first = ready(give(run("sleep", "infinity", options=home), wheels))
    first.exec("pip", "install", *OFFLINE, "one", "two")
    old = "cu128-torch2.9.1-py3.10-0a0a0a0a"
    rename = f"cd ~/.local/share/torchtap/env && mv cu* {old} && mv {old}/lib/python3* {old}/lib/python3.10"
    first.exec("sh", "-c", f"HOME=/home/dev; {rename}")
    second = ready(give(run("sleep", "infinity", options=home), wheels))
    second.wait_log(
        rf"2 that you had are kept in /home/dev/\S+/{old}\n +To install them here too: torchtap-env restore {old}"
    )
    options = ("-e", "PIP_NO_INDEX=1", "-e", f"PIP_FIND_LINKS={WHEELS}")
    engine.docker("exec", "-u", "dev", *options, second.id, "torchtap-env", "restore", old)
    assert second.exec("torchtap-env", "list").stdout == "one==1.0\ntwo==1.0\n"
    engine.docker("restart", "-t", "1", second.id)
    ready(second)
    assert second.logs.count("are kept in") == 1


def test_pip_works_without_root(run: Run, wheels: Path) -> None:
    """--user: the home is one in /tmp, and `docker exec` gives none at all."""
    allow = ("WARNING home:", "WARNING state:", "WARNING workspace:")
    container = run(
        "sleep", "infinity", options=("--user", "4321:4321", "-v", f"{wheels}:{WHEELS}:ro"), allow=allow
    )
    ready(container).exec("pip", "install", *OFFLINE, "one")
    assert where(container, "one").startswith(OVERLAY)


def test_os_packages_and_files_come_with_a_derived_image(
    engine: Engine, image: str, tmp_path: Path, run: Run
) -> None:
    """docs/packages.md: there is no sudo, so what needs root is built in."""
    text = (Path(__file__).parents[2] / "docs/packages.md").read_text()
    found = re.search(r"```dockerfile\n(FROM .*?)```", text, re.DOTALL)
    assert found
    recipe = found[1].replace("torchtap:cu130", image)
    # Machines without a way to the distribution's archive: the same recipe without its apt line.
    (tmp_path / "Dockerfile").write_text(
        re.sub(r"(?m)^RUN apt-get .*?(?<!\\)\n", "", recipe, flags=re.DOTALL)
    )
    (tmp_path / "requirements.txt").write_text("")
    name = f"{image.partition(':')[0]}-derived"
    engine.docker("build", "-q", "-t", name, str(tmp_path), timeout=600)
    try:
        derived = run("python", "-c", "import torch; print(torch.__version__)", of=name)
        assert derived.wait_end() == 0
    finally:
        engine.docker("image", "rm", "-f", name, check=False)
