"""make purge: what is listed is what goes, and nobody's work is in it."""

from __future__ import annotations

import json

import pytest

from tests.unit.host import dockerlike as fake
from tests.unit.host.checkout import Checkout, Fake
from tests.unit.host.test_commands import RUNS
from tests.unit.host.test_inside import CONFIGURED, on_terminal
from tests.unit.host.test_up import flat

SIZES = [
    {"Name": "mine_home", "Size": "4.2GB"},
    {"Name": "mine_state", "Size": "5.1kB"},
    {"Name": "other", "Size": "1B"},
]
OF_PROJECT = "--filter label=com.docker.compose.project=mine"
THERE = (
    {"when": f"^ps --all {OF_PROJECT} ", "out": "mine-dev-1\tUp 3 hours\n"},
    {"when": f"^volume ls {OF_PROJECT} ", "out": "mine_home\nmine_state\n"},
    {"when": f"^network ls {OF_PROJECT} ", "out": "mine_default\n"},
    {"when": r"^image ls --filter reference=torchtap:\* ", "out": "torchtap:cu128\t6.5GB\n"},
    {
        "when": f"^image ls {OF_PROJECT} --filter dangling=true ",
        "out": "0ld0ld\t6.4GB, of before an update\n",
    },
    {"when": "^system df", "out": json.dumps(SIZES)},
    {"when": "^(rm|volume rm|network rm|image rm|compose stop)"},
)
GONE = (
    {"when": "^(ps --all|volume ls|network ls|image ls)"},
    {"when": "^(rm|volume rm|network rm|image rm|compose stop)", "rc": 99},
)


@pytest.fixture
def docker(checkout: Checkout) -> Fake:
    (checkout.root / "workspace").mkdir()
    (checkout.root / "workspace/train.py").write_text("mine\n")
    (checkout.root / ".env").write_text("WORKSPACE=./workspace\n")
    (checkout.root / ".venv").mkdir()
    (checkout.root / ".venv/pyvenv.cfg").write_text("home = /usr\n")
    return checkout.fake("docker").answer(*fake.engine(RUNS, CONFIGURED, *THERE))


def removed(docker: Fake) -> list[str]:
    return [" ".join(call) for call in docker.calls if call[0] == "rm" or call[1:2] == ["rm"]]


def test_everything_of_the_project_goes_and_what_people_wrote_stays(checkout: Checkout, docker: Fake) -> None:
    done = checkout.run("purge", "--yes")
    assert done.returncode == 0, done.stderr
    assert removed(docker) == [
        "rm --force mine-dev-1",
        "volume rm mine_home",
        "volume rm mine_state",
        "network rm mine_default",
        "image rm torchtap:cu128",
        "image rm 0ld0ld",
    ]
    assert docker.called("^compose stop$"), "what runs gets its grace period"
    assert not (checkout.root / ".venv").exists()
    assert not list((checkout.root / ".torchtap/local").iterdir())
    assert (checkout.root / "workspace/train.py").read_text() == "mine\n"
    assert (checkout.root / ".env").exists()
    said = flat(done.stdout)
    assert "volume mine_home (4.2GB) volume mine_state (5.1kB)" in said
    assert "Every checkout with the project name mine uses them." in said
    assert "kept workspace and .env, and this checkout" in said


def test_a_name_that_is_not_the_projects_removes_nothing(checkout: Checkout, docker: Fake) -> None:
    code, said = on_terminal(checkout, "yes\n", "purge")
    assert code == 1
    assert "purge: that was not 'mine': nothing was touched" in said
    assert removed(docker) == []
    assert (checkout.root / ".venv").exists()


def test_the_projects_name_is_the_yes(checkout: Checkout, docker: Fake) -> None:
    code, said = on_terminal(checkout, "mine\n", "purge")
    assert code == 0, said
    assert "Type mine to go on:" in said
    assert "volume rm mine_home" in removed(docker)


def test_without_a_terminal_it_only_lists(checkout: Checkout, docker: Fake) -> None:
    done = checkout.run("purge")
    assert done.returncode == 2
    assert "mine_home (4.2GB)" in done.stdout
    assert "make purge ARGS=--yes" in done.stderr
    assert removed(docker) == []


def test_what_could_not_be_removed_is_named(checkout: Checkout) -> None:
    used = {"when": "^image rm", "rc": 1, "err": "Error: conflict: unable to remove, container is using it\n"}
    checkout.fake("docker").answer(*fake.engine(RUNS, CONFIGURED, used, *THERE))
    done = checkout.run("purge", "--yes")
    assert done.returncode == 1
    assert "left image torchtap:cu128: Error: conflict: unable to remove" in flat(done.stdout)
    assert "could not be removed" in done.stderr


def test_a_size_that_docker_does_not_tell_is_unknown(checkout: Checkout) -> None:
    slow = {"when": "^system df", "rc": 1}
    checkout.fake("docker").answer(*fake.engine(RUNS, CONFIGURED, slow, *THERE))
    assert "volume     mine_home (size unknown)" in checkout.run("purge").stdout


def test_a_workspace_inside_what_would_go_is_refused(checkout: Checkout, docker: Fake) -> None:
    done = checkout.run("purge", "--yes", env={"WORKSPACE": "./.venv/code"})
    assert done.returncode == 2
    assert "which would be removed" in done.stderr
    assert removed(docker) == []
    assert (checkout.root / ".venv").exists()


def test_a_venv_that_is_a_link_loses_the_link_alone(checkout: Checkout) -> None:
    """It may be shared, or somebody's own on another disk."""
    shared = checkout.root.parent / "shared"
    shared.mkdir()
    (shared / "pyvenv.cfg").write_text("home = /usr\n")
    (checkout.root / ".venv").symlink_to(shared)
    done = checkout.run("purge", "--yes", env={"MODE": "local"})
    assert done.returncode == 0, done.stderr
    assert "the link alone; what it leads to stays" in flat(done.stdout)
    assert (shared / "pyvenv.cfg").exists()
    assert not (checkout.root / ".venv").is_symlink()


def test_nothing_there_is_fine(checkout: Checkout) -> None:
    checkout.fake("docker").answer(*fake.engine(CONFIGURED, *GONE))
    done = checkout.run("purge")
    assert done.returncode == 0, done.stderr
    assert "there is nothing else to remove" in done.stdout


def test_an_engine_that_gives_no_list_is_not_taken_for_an_empty_one(checkout: Checkout) -> None:
    docker = checkout.fake("docker").answer(
        *fake.engine(RUNS, CONFIGURED, {"when": "^volume ls", "rc": 1, "err": "EOF\n"}, *THERE)
    )
    done = checkout.run("purge", "--yes")
    assert (done.returncode, done.stderr) == (2, "purge: docker volume ls gives no list: EOF\n")
    assert removed(docker) == []


def test_a_container_of_another_checkout_is_nobodys_to_remove(checkout: Checkout, docker: Fake) -> None:
    other = checkout.root.parent / "other"
    other.mkdir()
    container = fake.container()
    container["Config"]["Labels"] = {"com.docker.compose.project.working_dir": str(other)}
    docker.answer(*fake.engine(RUNS, CONFIGURED, *THERE, inspect=container))
    assert checkout.run("purge", "--yes").returncode == 2
    assert removed(docker) == []


def test_without_docker_only_the_folders_of_local_mode_go(checkout: Checkout) -> None:
    (checkout.root / ".venv").mkdir()
    (checkout.root / ".venv/pyvenv.cfg").write_text("home = /usr\n")
    done = checkout.run("purge", "--yes", env={"MODE": "local"})
    assert done.returncode == 0, done.stderr
    assert not (checkout.root / ".venv").exists()
