"""`make selftest`: preflight first, the right container, its reports, its exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from host.reports import FOLDER
from host.selftest import options_for
from tests.unit.host import dockerlike as fake
from tests.unit.host.checkout import Checkout, Fake
from tests.unit.host.test_up import flat

BUILT = {"when": "^image inspect", "out": "sha256:1\n"}
RUN = r"^run .*torchtap:cu130 selftest"


def answers(checkout: Checkout, rc: int = 0, *rows: fake.Row) -> Fake:
    """An engine with the image, whose self-test ends with `rc`."""
    return checkout.fake("docker").answer(
        *fake.engine(*rows, {"when": RUN, "out": "the table\n", "rc": rc}, BUILT)
    )


def test_it_says_before_it_builds_and_how_else_to_get_the_answer(checkout: Checkout) -> None:
    docker = checkout.fake("docker").answer(*fake.engine({"when": RUN, "out": "the table\n", "rc": 1}))
    done = checkout.run("selftest")
    assert done.returncode == 1  # the self-test's own
    said = flat(done.stdout)
    assert (
        said.index("preflight pass")
        < said.index("downloads about 3 GB")
        < said.index("make selftest MODE=local")
        < said.index("build torchtap:cu130")
    )
    assert "the table\n" in done.stdout
    assert docker.called("^compose build dev$")


@pytest.mark.parametrize("rc", [0, 1, 2, 130])
def test_the_exit_code_is_the_self_tests_and_the_container_is_removed(checkout: Checkout, rc: int) -> None:
    docker = answers(checkout, rc)
    assert checkout.run("selftest").returncode == rc
    removed = next(argv for argv in docker.calls if argv[:2] == ["rm", "--force"])
    started = next(argv for argv in docker.calls if argv[0] == "run" and "selftest" in argv)
    assert removed[-1] == started[started.index("--name") + 1]


@pytest.mark.parametrize("rc", [125, 126, 137])
def test_a_container_that_did_not_come_to_its_end_is_could_not_run(checkout: Checkout, rc: int) -> None:
    docker = answers(checkout, rc)
    done = checkout.run("selftest")
    assert done.returncode == 2
    assert f"docker run ended with exit code {rc}" in done.stderr
    assert docker.called("^rm --force")
    assert not (checkout.root / FOLDER).exists()


def test_the_container_has_the_limits_that_compose_gives_the_service(checkout: Checkout) -> None:
    """Else host.shm and host.limits would judge another container than the one people work in."""
    docker = answers(checkout)
    checkout.run("selftest")
    assert docker.called("^run .*--shm-size=8589934592 --ulimit=memlock=-1 --ulimit=stack=67108864 ")
    assert options_for({}) == []


def test_an_engine_that_gives_no_gpu_is_still_asked_for_one(checkout: Checkout) -> None:
    """Passing as "no GPU, by design" would be a lie: nobody designed it so."""
    docker = answers(checkout, 1)
    done = checkout.run("selftest")
    assert docker.called("^run .*--env TORCHTAP_DEVICE=gpu torchtap:cu130 selftest")
    assert "Docker hands out no GPU: could not select device driver" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"MODE": "cpu"}, "--env TORCHTAP_DEVICE=cpu"),
        ({"MODE": "gpu"}, "--gpus all"),
        ({"GPUS": "0,1"}, '--gpus "device=0,1"'),
    ],
)
def test_mode_and_gpus_are_those_asked_for(checkout: Checkout, env: dict[str, str], words: str) -> None:
    docker = answers(checkout, 0, fake.gpu())
    assert checkout.run("selftest", env=env).returncode == 0
    assert docker.called(f"^run .*{words} torchtap:cu130 selftest")
    assert not docker.called("compose build")


def test_level_minutes_expectations_and_words_are_passed_on(checkout: Checkout) -> None:
    docker = answers(checkout)
    env = {"LEVEL": "burn", "MINUTES": "30", "EXPECT_GPUS": "8", "TORCHTAP_EXPECT_NAME": "NVIDIA H200"}
    assert checkout.run("selftest", "--verbose", env=env).returncode == 0
    argv = next(argv for argv in docker.calls if argv[0] == "run" and "selftest" in argv)
    assert argv[-5:] == ["--level", "burn", "--minutes", "30", "--verbose"]
    assert "TORCHTAP_EXPECT_GPUS=8" in argv
    assert "TORCHTAP_EXPECT_NAME=NVIDIA H200" in argv


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"LEVEL": "ful"}, "LEVEL='ful': one of quick, full, burn (did you mean full?)"),
        ({"MINUTES": "30"}, "MINUTES=30 is for LEVEL=burn; the level is quick"),
        ({"LEVEL": "burn", "MINUTES": "soon"}, "MINUTES='soon': whole minutes"),
    ],
)
def test_a_bad_level_is_refused_before_anything_starts(
    checkout: Checkout, env: dict[str, str], words: str
) -> None:
    docker = answers(checkout)
    done = checkout.run("selftest", env=env)
    assert done.returncode == 2
    assert words in done.stderr
    assert not docker.called("^(run|compose build)")


def test_reports_replace_the_old_ones_and_leave_other_files_alone(checkout: Checkout) -> None:
    folder = checkout.root / FOLDER
    folder.mkdir()
    (folder / "junit.xml").write_text("old")
    (folder / "notes.txt").write_text("mine")
    answers(checkout, 1)
    done = checkout.run("selftest")
    assert done.returncode == 1
    assert sorted(each.name for each in folder.iterdir()) == ["notes.txt", "preflight.json"]
    document = json.loads((folder / "preflight.json").read_text())
    assert (document["preflight"], document["verdict"]) == (1, "pass")
    assert f"reports {FOLDER}/: preflight.json" in flat(done.stdout)
    assert [each.name for each in (checkout.root / ".torchtap").glob("report-*")] == []


def test_the_report_is_copied_out_of_the_container(checkout: Checkout) -> None:
    """`docker cp` writes as its caller: a mount would be the container user's, or root's."""
    docker = answers(checkout)
    checkout.run("selftest")
    copied = next(argv for argv in docker.calls if argv[0] == "cp")
    assert copied[1].startswith("torchtap-selftest-")
    assert copied[1].endswith(":/tmp/selftest-report/.")
    assert Path(copied[2]).parent == checkout.root / ".torchtap"


def test_a_wrong_option_leaves_the_last_reports_alone(checkout: Checkout) -> None:
    folder = checkout.root / FOLDER
    folder.mkdir()
    (folder / "report.json").write_text("old")
    answers(checkout, 2)
    done = checkout.run("selftest", "--onyl")
    assert done.returncode == 2
    assert "if torchtap:cu130 is older than this checkout: make build" in flat(done.stdout)
    assert [each.name for each in folder.iterdir()] == ["report.json"]


def test_a_folder_that_cannot_be_written_is_told_before_the_test(checkout: Checkout) -> None:
    docker = answers(checkout)
    (checkout.root / FOLDER).write_text("in the way")
    done = checkout.run("selftest")
    assert done.returncode == 2
    assert done.stderr.startswith(f"selftest: {FOLDER} is a file")
    assert docker.calls == []


def test_json_is_alone_on_stdout(checkout: Checkout) -> None:
    checkout.fake("docker").answer(*fake.engine({"when": "^run .* --json$", "out": '{"schema": 1}\n'}))
    done = checkout.run("selftest", "--json")
    assert done.stdout == '{"schema": 1}\n'
    assert "downloads about 3 GB" in flat(done.stderr)


def test_without_rights_it_cannot_run_and_preflight_says_why(checkout: Checkout) -> None:
    denied = {"ServerErrors": ["permission denied while trying to connect to the Docker daemon socket"]}
    checkout.fake("docker").answer({"when": "^info", "out": json.dumps(denied), "rc": 1})
    done = checkout.run("selftest")
    assert done.returncode == 2
    assert "FAIL engine.docker" in flat(done.stdout)
    assert "this user may not use it" in done.stderr
    assert [each.name for each in (checkout.root / FOLDER).iterdir()] == ["preflight.json"]


SLOW = """#!{python}
import signal, sys, time
got = []
signal.signal(signal.SIGINT, lambda *_: got.append(1))
print("at work", flush=True)
while not got:
    time.sleep(0.05)
print("ended early", flush=True)
sys.exit(1)
"""


def test_ctrl_c_is_the_self_tests_matter_and_the_container_is_removed(
    checkout: Checkout, tmp_path: Path
) -> None:
    """As a terminal does it: the signal goes to the whole group; what was found so far is shown, and its code kept."""
    docker = answers(checkout)
    real = docker.folder / "docker"
    real.rename(docker.folder / "docker-table")
    slow = tmp_path / "slow"
    slow.write_text(SLOW.format(python=sys.executable))
    slow.chmod(0o755)
    script = f'#!/bin/sh\ncase "$1 $*" in "run "*--report*) exec {slow};; esac\n'
    real.write_text(f'{script}exec {docker.folder}/docker-table "$@"\n')
    real.chmod(0o755)
    child = subprocess.Popen(
        [sys.executable, str(checkout.root / "scripts/selftest")],
        env=checkout.env,
        cwd=checkout.root,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout
    said = ""
    for line in child.stdout:
        said += line
        if line == "at work\n":
            break
    time.sleep(0.2)
    os.killpg(child.pid, signal.SIGINT)
    said += child.stdout.read()
    assert child.wait(timeout=20) == 1
    assert "ended early" in said
    assert "preflight.json" in said
    assert docker.called("^rm --force")
