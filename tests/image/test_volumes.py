"""What the volumes hold and what becomes of it: new, full, spoiled, shared, of another image, of another user."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engine.engine import Engine

from .conftest import NO_KEY, OFF, ROOT, Container, Run, wait_until

STATE, HOME = "/var/lib/torchtap", "/home/dev"
Volume = Callable[..., str]


@pytest.fixture
def volume(engine: Engine) -> Iterator[Volume]:
    """Make a named volume; with options it is a file system of its own. Removed after the test's containers."""
    made: list[str] = []

    def make(*options: str) -> str:
        name = f"torchtap-test-{uuid.uuid4().hex[:12]}"
        flags = [word for option in options for word in ("--opt", option)]
        made.append(engine.docker("volume", "create", *flags, name).stdout.strip())
        return name

    yield make
    for name in made:
        engine.docker("volume", "rm", "-f", name, check=False)


def root(engine: Engine, image: str, script: str, *options: str) -> str:
    """A shell as root on volumes, without start."""
    return engine.docker(
        "run", "--rm", "--user", "0", "--entrypoint", "sh", *options, image, "-ec", script
    ).stdout


def owner(container: Container, *where: str) -> list[str]:
    return container.exec("stat", "-c", "%u:%g", *where, root=True).stdout.split()


def test_c7_volumes_are_the_users_wherever_they_are_mounted(volume: Volume, run: Run) -> None:
    """h2oai/h2ogpt#729, nemotron-v3-home-security-intelligence#1386: a named cache volume came up as root's.

    Below the home, beside it, as a file system of its own; and the folders that the engine made on the way.
    """
    container = run(
        options=(
            "-v", f"{volume()}:{HOME}",
            "-v", f"{volume()}:{HOME}/.cache/huggingface",
            "-v", f"{volume('type=tmpfs', 'device=tmpfs', 'o=size=1m,mode=0755')}:{HOME}/.local/scratch",
            "-v", f"{volume()}:/data",
            "-v", f"{volume()}:/workspace",
            "-v", f"{volume()}:/workspace/outputs",
        ),
        env={**OFF, "HOST_UID": "1234"},
        allow=(NO_KEY,),
    ).wait_healthy()  # fmt: skip
    places = ["", "/.cache", "/.cache/huggingface", "/.local", "/.local/scratch"]
    paths = [f"{HOME}{place}" for place in places] + ["/data", "/workspace", "/workspace/outputs"]
    container.exec("touch", *(f"{path}/file" for path in paths))
    assert owner(container, *paths) == ["1234:1234"] * len(paths)
    where = container.kernel(
        "import os; print(*(os.environ[n] for n in ('HF_HOME', 'TORCHINDUCTOR_CACHE_DIR')))"
    )
    assert where.split() == [f"{HOME}/.cache/huggingface", f"{HOME}/.cache/torchinductor"]


def test_full_volumes_are_named_and_one_can_log_in_and_make_room(
    engine: Engine, image: str, run: Run, volume: Volume
) -> None:
    """Home, state and workspace are full at a restart: the data, the token and the host key stay."""
    places = {HOME: volume("type=tmpfs", "device=tmpfs", "o=size=8m"), STATE: "", "/workspace": ""}
    places[STATE] = volume("type=tmpfs", "device=tmpfs", "o=size=64k")
    places["/workspace"] = volume("type=tmpfs", "device=tmpfs", "o=size=2m")
    mounts = [word for path, name in places.items() for word in ("-v", f"{name}:{path}")]
    # A tmpfs is emptied when nobody has it mounted.
    keeper = engine.docker("run", "-d", *mounts, "--entrypoint", "sleep", image, "600").stdout.strip()
    try:
        container = run(
            key=True,
            options=tuple(mounts),
            env=OFF,
            allow=(r"WARNING disk: /home/dev: no room: all of its 8 MB are used",
                   r"WARNING disk: /workspace: no room: all of its 2 MB are used",
                   r"WARNING disk: /var/lib/torchtap: no room: all of its 64 kB are used"),
        ).wait_healthy()  # fmt: skip
        token, key = container.token, container.exec("torchtap-fingerprints").stdout
        fill = "; ".join(f"cat /dev/zero >{path}/mine 2>/dev/null" for path in places)
        container.exec("sh", "-c", f"{fill}; true", root=True)
        engine.docker("restart", container.id)
        container.wait_healthy()
        assert (container.token, container.exec("torchtap-fingerprints").stdout) == (token, key)
        assert container.kernel("print(6 * 7)") == "42"
        assert container.ssh("echo $HOME; df --output=pcent $HOME | tail -1").stdout.split() == [HOME, "100%"]
        container.exec("rm", f"{STATE}/mine", f"{HOME}/mine", "/workspace/mine", root=True)
        container.ssh("echo kept > ~/new && cat ~/new")
    finally:
        engine.docker("rm", "-f", keeper, check=False)


def test_a_full_state_volume_without_a_token_gets_a_substitute(
    engine: Engine, image: str, run: Run, volume: Volume
) -> None:
    name = volume("type=tmpfs", "device=tmpfs", "o=size=16k")
    mount = ("-v", f"{name}:{STATE}")
    keeper = engine.docker("run", "-d", *mount, "--entrypoint", "sleep", image, "600").stdout.strip()
    try:
        engine.docker("exec", keeper, "sh", "-c", f"cat /dev/zero >{STATE}/data 2>/dev/null; true")
        container = run(
            key=True,
            options=mount,
            env=OFF,
            allow=(
                r"WARNING disk: /var/lib/torchtap: no room: all of its 16 kB are used",
                r"WARNING state: /var/lib/torchtap is full: all of its 16 kB are used, and it holds no token yet",
            ),
        ).wait_healthy()
        assert container.api("/api/status", container.token)[0] == 200
        assert container.ssh("echo $TORCHTAP_STATE").stdout == "/tmp/torchtap-state-1000\n"
        assert container.exec("stat", "-c", "%s", f"{STATE}/data").stdout == "16384\n"
    finally:
        engine.docker("rm", "-f", keeper, check=False)


def test_a_folder_of_the_host_as_the_state_keeps_its_owner_and_a_spoiled_token_is_set_aside(
    run: Run, tmp_path: Path
) -> None:
    """The keys inside are root's and closed; the token is closed again, and a new one, because others could read it."""
    folder = tmp_path / "state"
    folder.mkdir(mode=0o750)
    (folder / "jupyter-token").write_bytes(b"\x00\xff binary")
    (folder / "selftest.json").mkdir()  # in the way of the report
    for path in (folder, *folder.iterdir()):
        os.chown(path, 1000, 1000)
    container = run(
        key=True,
        options=("-v", f"{folder}:{STATE}"),
        env=OFF,
        allow=(
            r"WARNING jupyter: the token's file /var/lib/torchtap/jupyter-token holds something else than a token",
        ),
    ).wait_healthy()
    assert re.fullmatch("[0-9a-f]{48}", container.token)
    assert (folder / "jupyter-token.damaged-1").read_bytes() == b"\x00\xff binary"
    found = {path: path.stat() for path in (folder, folder / "jupyter-token", folder / "ssh")}
    assert [(f.st_uid, f.st_gid, f"{f.st_mode & 0o7777:o}") for f in found.values()] == [
        (1000, 1000, "750"),
        (1000, 1000, "600"),
        (0, 0, "700"),
    ]
    container.ssh("true")


def test_two_containers_on_one_state_volume_share_token_and_host_key(run: Run, volume: Volume) -> None:
    """They start at the same time; whoever is later finds what the first made, and is told so at the next start."""
    mount = ("-v", f"{volume()}:{STATE}")
    first, second = (run(key=True, options=mount, env=OFF) for _ in range(2))
    for container in (first, second):
        container.wait_healthy()
    assert first.token == second.token
    assert len({c.exec("torchtap-fingerprints").stdout.split()[1] for c in (first, second)}) == 1
    second.engine.docker("restart", second.id)
    second.wait_healthy()
    said = (
        "INFO    state: another running container uses /var/lib/torchtap too: token and host key are the same"
    )
    assert said in second.logs
    held = second.ssh("ls -l /proc/self/fd | grep -c /var/lib/torchtap", check=False).stdout
    assert held == "0\n", "sessions inherit no lock"


def test_a_state_that_another_users_container_uses_keeps_its_token(run: Run, volume: Volume) -> None:
    mount = ("-v", f"{volume()}:{STATE}")
    first = run("jupyter", options=mount, env=OFF).wait_healthy()
    warning = (
        r"WARNING state: /var/lib/torchtap holds what another user made \(jupyter-token\); this is uid 1001"
    )
    run("jupyter", options=mount, env={**OFF, "HOST_UID": "1001"}, allow=(warning,)).wait_healthy()
    owner = first.exec("stat", "-c", "%u:%g %a", f"{STATE}/jupyter-token").stdout.strip()
    assert owner == "1000:1000 600"


def test_a_home_of_another_image_and_another_id_is_kept_whole(
    engine: Engine, image: str, run: Run, volume: Volume
) -> None:
    """HOST_UID was 501 with cu128 and an older Python; now it is 12345. Nothing is lost; others keep theirs."""
    mount = ("-v", f"{volume()}:{HOME}")
    note = {"variant": "cu128", "torch": "2.9.1", "python": "3.10.12", "uid": 501, "gid": 20, "schema": 1}
    root(
        engine, image,
        f"mkdir -p {HOME}/.local/share/torchtap {HOME}/.venv/bin; cd {HOME}; echo mine >notes; touch others root"
        f"; echo '{json.dumps(note)}' >.local/share/torchtap/last-image.json; chown -R 501:20 {HOME}"
        "; chown 777:777 others; chown 0:0 root",
        *mount,
    )  # fmt: skip
    container = run(
        key=True, options=mount, env={**OFF, "HOST_UID": "12345", "HOST_GID": "54321"},
    ).wait_healthy()  # fmt: skip
    assert re.search(
        r"INFO    home: last used by cu128, PyTorch 2.9.1, Python 3.10.12; this is ", container.logs
    )
    assert (
        "Virtual environments of your own that were made with Python 3.10 have to be made again"
        in container.logs
    )
    assert (
        "INFO    home: /home/dev was 501's, as dev was before. It is given to 12345:54321" in container.logs
    )
    assert container.ssh("cat ~/notes; echo more >>~/notes; touch ~/.venv/bin/python").stdout == "mine\n"
    paths = [f"{HOME}{name}" for name in ("", "/notes", "/root", "/.venv/bin", "/others")]
    assert owner(container, *paths) == ["12345:54321"] * 4 + ["777:777"]
    noted = json.loads(container.exec("cat", f"{HOME}/.local/share/torchtap/last-image.json").stdout)
    assert (noted["uid"], noted["variant"], noted["schema"]) == (
        12345,
        os.environ.get("VARIANT") or "cu130",
        1,
    )


def test_a_home_that_another_running_container_uses_is_not_taken_from_it(run: Run, volume: Volume) -> None:
    mount = ("-v", f"{volume()}:{HOME}")
    first = run("jupyter", options=mount, env=OFF).wait_healthy()
    second = run(
        "jupyter", options=mount, env={**OFF, "HOST_UID": "4321"},
        allow=(
            "WARNING home: /home/dev cannot be written by uid 4321, gid 4321: it belongs to 1000:1000, mode 0755, "
            "and another running container uses it",
        ),
    ).wait_healthy()  # fmt: skip
    assert owner(first, HOME) == ["1000:1000"]
    assert second.kernel("import os; print(os.environ['HOME'])").strip() == "/tmp/torchtap-home-4321"


def test_a_folder_of_the_host_as_the_home_keeps_its_owner(run: Run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 1000, 1000)
    container = run(
        options=("-v", f"{home}:{HOME}"), env={**OFF, "HOST_UID": "4321"},
        allow=(NO_KEY, "WARNING home: /home/dev cannot be written by uid 4321"),
    )  # fmt: skip
    container.wait_log("JupyterLab on port")
    assert (home.stat().st_uid, list(home.iterdir())) == (1000, [])
    assert "Add: -v VOLUME:/home/dev, with another volume; or -e HOST_UID=1000, whose it is" in container.logs


def test_the_hosts_downloads_reach_the_home_as_the_page_says(
    engine: Engine, run: Run, tmp_path: Path
) -> None:
    """docs/upgrades.md: a second Compose file, and the same with docker alone."""
    page = (ROOT / "docs/upgrades.md").read_text()
    (text,) = re.findall(r"<!-- compose.cache.yaml -->\n```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "compose.cache.yaml").write_text(text)
    files = ("-f", str(ROOT / "compose.yaml"), "-f", str(tmp_path / "compose.cache.yaml"))
    words = ("compose", "--project-directory", str(ROOT), *files, "config", "--format", "json")
    said = json.loads(engine.docker(*words, env={"HOME": str(tmp_path)}).stdout)
    cache = tmp_path / ".cache/huggingface"
    assert [
        v["source"] for v in said["services"]["dev"]["volumes"] if v["target"] == f"{HOME}/.cache/huggingface"
    ] == [str(cache)]
    cache.mkdir(parents=True)
    os.chown(cache, 1000, 1000)
    container = run("sleep", "60", options=("-v", f"{cache}:{HOME}/.cache/huggingface"))
    wait_until(lambda: container.exec("test", "-e", "/run/torchtap/started.json", check=False).returncode == 0, 30,
               lambda: container.logs)  # fmt: skip
    container.exec("touch", f"{HOME}/.cache/huggingface/model", f"{HOME}/.cache/other")
    assert (cache / "model").stat().st_uid == 1000


def test_a_file_in_place_of_the_workspace_is_refused_by_the_engine(
    engine: Engine, image: str, tmp_path: Path
) -> None:
    """Before anything of the image runs, and in words that say what is wrong."""
    file = tmp_path / "file"
    file.touch()
    done = engine.docker("run", "--rm", "-v", f"{file}:/workspace", image, "true", check=False)
    assert done.returncode in (125, 127)
    assert "not a directory" in done.stderr


def test_logs_of_a_user_given_by_number_name_options_and_no_folder_that_is_not_there(run: Run) -> None:
    container = run(
        "jupyter", options=("--user", "12345:54321"), env=OFF,
        allow=("WARNING home:", "WARNING state:", "WARNING workspace:"),
    )  # fmt: skip
    wait_until(lambda: "JupyterLab on port" in container.logs, 30, lambda: container.logs)
    for path in ("/workspace", HOME, STATE):
        assert f"Add: -v FOLDER:{path}, with a folder that belongs to 12345:54321" in container.logs
    assert "chown" not in container.logs
