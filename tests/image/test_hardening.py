"""Fewer powers, no root, no network, a read-only root: alone and together. And what no layer may hold."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engine import Engine

from .conftest import KERNEL_CLIENT, OFF, POWERS, READ_ONLY, ROOT, Container, Run
from .test_compose import Project, project  # noqa: F401 - the fixture

# `docker exec -u dev` asks /etc/passwd, which a read-only root leaves without dev.
NUMBERS = "1000:1000"
NO_NEW = ("--security-opt", "no-new-privileges:true")


def powers(*without: str) -> tuple[str, ...]:
    kept = [f"--cap-add={name}" for name in POWERS if name not in without]
    return ("--cap-drop=ALL", *NO_NEW, *kept)


def kernel_inside(container: Container, code: str) -> str:
    """As `Container.kernel`, without a network: asked from inside the container."""
    start = (
        "import json, urllib.request\n"
        f"headers = {{'Authorization': 'token {container.token}'}}\n"
        "request = urllib.request.Request('http://127.0.0.1:8888/api/kernels', b'{}', headers, method='POST')\n"
        "print(json.load(urllib.request.urlopen(request))['id'])\n"
    )
    where = (
        "import os\n"
        "if os.path.isdir('/tmp/torchtap/jupyter'):\n"  # where /run cannot be written
        "    os.environ['JUPYTER_RUNTIME_DIR'] = '/tmp/torchtap/jupyter'\n"
    )
    return container.python(where + KERNEL_CLIENT.format(id=container.python(start), code=code, wait=True))


# ---- the matrix ----
USER = ("--user", "12345:54321")
NOT_WRITABLE = {
    "workspace": r"WARNING workspace: /workspace cannot be written",
    "home": r"WARNING home: /home/dev cannot be written",
    "state": r"WARNING state: /var/lib/torchtap cannot be written",
}


@pytest.mark.parametrize(
    ("user", "read_only", "offline"),
    list(itertools.product((False, True), repeat=3)),
    ids=lambda on: "yes" if on else "no",
)
def test_it_works_with_the_least(run: Run, user: bool, read_only: bool, offline: bool) -> None:
    """Without root, with a read-only root, without a network, in every combination, and always without powers: healthy,
    sshd and JupyterLab, a kernel computes. What cannot be kept is said, and nothing else is."""
    options = [*NO_NEW, "--cap-drop=ALL"] if user else list(powers())
    options += [
        *(USER if user else ()),
        *(READ_ONLY if read_only else ()),
        *(("--network=none",) if offline else ()),
    ]
    container = run(
        key=True,
        env=OFF,
        options=tuple(options),
        allow=tuple(NOT_WRITABLE.values()) if user or read_only else (),
    )
    container.wait_healthy(limit_s=120)
    if not user:
        container.user = NUMBERS
    said = kernel_inside(container, "import os, torch; print(os.getuid(), torch.ones(3).sum().item())")
    assert said == f"{12345 if user else 1000} 3.0"
    services = container.exec("ps", "axo", "comm").stdout
    assert "sshd" in services
    if not offline:
        assert container.ssh("id -un").stdout == "dev\n"


def test_the_line_to_paste_in_the_docs_works(run: Run) -> None:
    """docs/security.md shows one command with every restriction; this runs its options."""
    page = (ROOT / "docs/security.md").read_text()
    (block,) = re.findall(r"```bash\ndocker run -d (--read-only.*?)torchtap:cu130\n```", page, re.DOTALL)
    options = [word for word in block.replace("\\\n", " ").split() if not word.startswith("127.0.0.1:")]
    options = [word for word in options if word not in ("-p", "--gpus", "all")]
    options = [
        re.sub(r"^torchtap-\w+:/", "/", word) for word in options
    ]  # volumes without a name: gone afterwards
    container = run(key=True, env=OFF, options=tuple(options)).wait_healthy()
    container.user = NUMBERS
    assert container.kernel("print(6 * 7)") == "42"
    assert container.ssh("touch ~/x /workspace/x; id -un").stdout == "dev\n"


# ---- capabilities ----
@pytest.mark.parametrize("missing", POWERS)
def test_every_capability_of_the_list_is_needed(run: Run, missing: str) -> None:
    """The documented minimum is one: without any of them something stops working, and it is said."""
    breaks: dict[str, Any] = {
        "AUDIT_WRITE": (
            r"ERROR   ssh: CAP_AUDIT_WRITE is missing, so sshd will end every login with a term",
            None,
        ),
        "CHOWN": (r"ERROR   start: \S+: Operation not permitted", 126),
        "DAC_OVERRIDE": (r"WARNING home: /home/dev cannot be written by uid 1234", None),
        "KILL": ("", None),
        "SETGID": (r"ERROR   start: root may not become user 1234:1234 here: CAP_SETUID or CAP_SETGID", 2),
        "SETUID": (r"ERROR   start: root may not become user 1234:1234 here: CAP_SETUID or CAP_SETGID", 2),
        "SYS_CHROOT": (r"ERROR   ssh: not started: CAP_SYS_CHROOT is missing", None),
    }
    says, code = breaks[missing]
    container = run(
        key=True,
        env={**OFF, "HOST_UID": "1234", "TORCHTAP_STOP_GRACE": "3"},
        options=powers(missing),
        allow=(says, ".*"),
    )
    if code is not None:
        assert container.wait_end() == code
    else:
        container.wait_healthy()
    if missing == "KILL":
        container.engine.docker("stop", "--time", "3", container.id)
        assert container.state(".State.ExitCode") == 137, "nothing of dev's can be told to end"


def test_c31_another_images_open_host_key_is_mended_with_these_powers(run: Run, tmp_path: Path) -> None:
    """A state volume whose files belong to somebody and are open to all: kept, and root's alone afterwards."""
    folder = tmp_path / "ssh"
    folder.mkdir()
    key = folder / "ssh_host_ed25519_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    before = key.read_bytes()
    for path in (tmp_path, folder, *folder.iterdir()):
        os.chown(path, 911, 911)
        path.chmod(0o777)
    container = run("ssh", key=True, env=OFF, options=(*powers(), "-v", f"{tmp_path}:/var/lib/torchtap"))
    container.wait_healthy(limit_s=120)
    assert container.ssh("id -un").stdout == "dev\n"
    found = key.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (0, 0, 0o600)
    assert key.read_bytes() == before


def test_compose_gives_a_session_no_way_to_more(project: Project) -> None:  # noqa: F811 - the fixture
    """No new privileges, Docker's seccomp profile, no capability at all for dev; sshd, tmux and screen do work."""
    files = ("compose.yaml", "compose.cpu.yaml")
    project("up", "-d", "--no-build", "--wait", files=files, TORCHTAP_SELFTEST="off")
    status = project.container.ssh("cat /proc/self/status").stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"
    assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == 0
    bounding = int(fields["CapBnd"], 16)
    assert bounding.bit_count() == len(POWERS)
    said = project.container.ssh(
        "screen -dmS one sleep 100; tmux new-session -d; screen -ls; tmux list-sessions"
    ).stdout
    assert "one" in said
    assert "1 windows" in said
    root = project.container.ssh("su -c id root </dev/null 2>&1; command -v sudo doas pkexec", check=False)
    assert "uid=0" not in root.stdout
    assert root.returncode != 0


ATTACH = """
import ctypes, os, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
target = int(sys.argv[1]) if len(sys.argv) > 1 else subprocess.Popen(["sleep", "60"]).pid
time.sleep(0.2)
answer = libc.ptrace(16, target, None, None)  # PTRACE_ATTACH
print("attached" if answer == 0 else os.strerror(ctypes.get_errno()))
"""


def test_the_debug_file_lets_a_debugger_in_and_the_others_do_not(project: Project) -> None:  # noqa: F811
    """gdb and py-spy attach by ptrace. dev may look into what it started itself where the host's Yama allows that; root
    into dev's processes only with compose.debug.yaml."""
    plain = ("compose.yaml", "compose.cpu.yaml")
    for files, expected in ((plain, "Operation not permitted"), ((*plain, "compose.debug.yaml"), "attached")):
        project("up", "-d", "--no-build", "--wait", files=files, TORCHTAP_SELFTEST="off")
        container = project.container
        pid = container.exec("pgrep", "-o", "-u", "dev", "-f", "jupyter-lab", root=True).stdout.strip()
        assert container.exec("python", "-c", ATTACH, pid, root=True).stdout.strip() == expected
    assert container.exec("python", "-c", ATTACH).stdout.strip() == "attached", "a child of one's own, always"


# ---- what is in the image ----
# All of Debian's and Ubuntu's own; none helps dev, who has no password and may gain no privileges in Compose.
SETUID = {
    "chage", "chfn", "chsh", "expiry", "gpasswd", "mount", "newgrp", "passwd", "ssh-agent", "ssh-keysign", "su",
    "umount", "unix_chkpwd", "utempter", "pam_extrausers_chkpwd", "dbus-daemon-launch-helper",
}  # fmt: skip


CAPABILITIES = """
import os
for folder in ("/usr", "/opt/torchtap/bin", "/opt/torchtap/venv/bin", "/home"):
    for directory, _, files in os.walk(folder):
        for name in files:
            if "security.capability" in os.listxattr(path := os.path.join(directory, name), follow_symlinks=False):
                print(path)
"""


def test_nothing_unexpected_is_setuid_and_nobody_has_a_password(shared: Container) -> None:
    found = shared.exec("find", "/", "-xdev", "-type", "f", "-perm", "/6000", root=True).stdout.split()
    assert {Path(path).name for path in found} <= SETUID, found
    assert not [path for path in found if path.startswith(("/opt", "/home", "/usr/local"))]
    assert shared.exec("python", "-c", CAPABILITIES, root=True).stdout == ""
    accounts = shared.exec("cat", "/etc/shadow", root=True).stdout.splitlines()
    assert not [line for line in accounts if line.split(":")[1][:1] not in ("*", "!")]


def test_nothing_that_root_runs_can_be_written_by_dev(shared: Container) -> None:
    """Start, stop, health and sshd's configuration are root's, with all folders above them."""
    found = shared.exec(
        "find", "/opt/torchtap", "/etc", "/usr/bin", "/usr/sbin", "/usr/lib/openssh", "-xdev",
        "(", "-not", "-user", "root", "-o", "-perm", "/022", ")", "-not", "-type", "l", root=True,
    ).stdout.split()  # fmt: skip
    assert found == []


def scan(engine: Engine, image: str) -> tuple[list[tuple[str, str]], int]:
    """Every layer by itself, so that what a later one deletes is seen too; and how many files were looked at."""
    data = json.loads(engine.docker("inspect", "-f", "{{json .GraphDriver}}", image).stdout)
    if not data or data["Name"] != "overlay2":
        pytest.skip("only an engine with overlay2 tells where its layers lie")
    folders = [data["Data"]["UpperDir"], *data["Data"].get("LowerDir", "").split(":")]
    mounts = [f"--volume={folder}:/layers/{number}:ro" for number, folder in enumerate(filter(None, folders))]
    script = Path(__file__).with_name("scan.py")
    done = engine.docker(
        "run", "--rm", "-i", "--network=none", "--entrypoint=/usr/bin/python3", *mounts, image, "-",
        input=script.read_text(),
    )  # fmt: skip
    found, seen = json.loads(done.stdout)
    return [(path.partition("/")[2], what) for path, what in found], seen


# A test of tornado's, in its public wheel.
KNOWN = ("site-packages/tornado/test/test.key", "a private key")


@pytest.mark.every_variant
def test_c31_no_layer_and_no_history_holds_a_secret(engine: Engine, image: str) -> None:
    found, seen = scan(engine, image)
    assert seen > 10_000, "the scan did not read the layers"
    found = [(path, what) for path, what in found if (path[-len(KNOWN[0]) :], what) != KNOWN]
    assert found == []
    history = engine.docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", image).stdout
    config = engine.docker("inspect", "-f", "{{json .Config}}", image).stdout
    for text in (history, config):
        assert not re.search(r"(?i)BEGIN|password|(secret|api_key)=\S|ghp_|hf_[a-z]{34}", text)
        assert not re.search(r"(?i)://[^/\s:]+:[^/\s@]+@|_proxy=", text)
    assert not re.search(r"(?i)token|secret", config)


def test_a_secret_that_a_later_layer_deletes_is_found(engine: Engine, image: str, tmp_path: Path) -> None:
    """Else the test above would show nothing. An SSH key of a private build is the usual accident."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "deploy")], check=True
    )
    (tmp_path / "Dockerfile").write_text(
        f"FROM {image}\nCOPY deploy /root/deploy\nRUN rm /root/deploy && touch /root/.netrc && "
        "mkdir -p /root/.cache/pip /var/lib/apt/lists && touch /root/.cache/pip/x /var/lib/apt/lists/x_Packages.lz4\n"
    )
    name = f"{image.partition(':')[0]}-planted"
    engine.docker("build", "-q", "-t", name, str(tmp_path))
    try:
        found, _ = scan(engine, name)
    finally:
        engine.docker("rmi", name)
    assert ("root/deploy", "a private key") in found
    assert ("root/.netrc", "what a person keeps for himself") in found
    assert ("root/.cache/pip/x", "a cache of the build") in found
    assert ("var/lib/apt/lists/x_Packages.lz4", "a cache of the build") in found


# ---- CPUs ----
def test_c32_a_quota_sets_the_thread_counts_of_every_session(run: Run) -> None:
    """Programs see all CPUs, so they are told: in SSH, kernels and commands. What the user sets wins."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU: a quota below that changes nothing")
    container = run(key=True, env=OFF, options=("--cpus", "0.5")).wait_healthy()
    assert container.ssh("echo $OMP_NUM_THREADS").stdout == "1\n"
    said = container.kernel(
        "import torch, os; print(torch.get_num_threads(), len(os.sched_getaffinity(0)) > 1)"
    )
    assert said == "1 True"
    assert "INFO    cpu: 1 of " in container.logs
    own = container.ssh("OMP_NUM_THREADS=2 python -c 'import torch; print(torch.get_num_threads())'").stdout
    assert own == "2\n"


def test_c32_without_a_quota_nothing_is_set_and_the_users_own_wins(engine: Engine, image: str) -> None:
    show = ("sh", "-c", "env | grep -c _THREADS= || true")
    assert engine.docker("run", "--rm", image, *show).stdout.strip() == "0"
    options = ("--cpus", "0.5", "-e", "OMP_NUM_THREADS=7")
    assert engine.docker("run", "--rm", *options, image, "printenv", "OMP_NUM_THREADS").stdout.strip() == "7"


WORKERS = """
import torch
from torch.utils.data import DataLoader

class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.ones(4 << 20)  # 16 MiB

if __name__ == "__main__":
    for batch in DataLoader(Data(), batch_size=4, num_workers=2):
        pass
    print("loaded")
"""


def test_c27_too_little_shared_memory_is_said_at_start_and_composes_size_is_enough(run: Run) -> None:
    """Docker's 64 MB end a worker with a bus error; --shm-size, which the line names and compose.yaml has, does not."""
    small = run("jupyter", env=OFF)
    small.wait_log(r"INFO    memory: /dev/shm holds 64 MB.*\n.*--shm-size 8g")
    failed = small.exec("python", "-c", WORKERS, check=False)
    assert failed.returncode != 0
    assert "shared memory" in failed.stderr or "Bus error" in failed.stderr
    large = run("python", "-c", WORKERS, options=("--shm-size", "8g"))
    assert large.wait_end() == 0
    assert large.logs == "loaded\n"


# ---- batch systems and rootless engines ----
def test_c25_as_apptainer_runs_it(run: Run, tmp_path: Path) -> None:
    """As the host's user, with his home at its own path, a read-only root, /run closed, the host's environment and
    shell, and not as PID 1."""
    home = tmp_path / "alice"
    home.mkdir()
    os.chown(home, 23456, 23456)
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents:
        if folder != Path("/tmp") and folder.is_relative_to("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o111)
    container = run(
        "sh", "-c", "/usr/bin/tini -s -- /opt/torchtap/bin/start dev; exit $?",
        env={**OFF, "HOME": str(home), "SHELL": "/usr/bin/fish", "XDG_RUNTIME_DIR": "/run/user/23456"},
        options=(
            "--user", "23456:23456", "--read-only", "--tmpfs", "/tmp:mode=1777", "-v", f"{home}:{home}",
            "-w", str(home), "--entrypoint", "/usr/bin/env", "--cap-drop=ALL",
        ),
        allow=(NOT_WRITABLE["state"], NOT_WRITABLE["workspace"], r"WARNING ssh: not started: /run/torchtap cannot be"),
    )  # fmt: skip
    container.wait_healthy(limit_s=120)
    said = kernel_inside(
        container,
        "import os, pathlib; pathlib.Path('made').touch(); print(os.getcwd(), *map(os.environ.get, ('HOME', 'SHELL')))",
    )
    assert said == f"{home} {home} /bin/bash"
    assert (home / "made").stat().st_uid == 23456
    assert not (home / ".bashrc").exists(), "nothing of the image's is put into the host's home"
