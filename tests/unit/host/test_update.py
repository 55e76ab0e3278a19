"""make update, with a fake docker: what is fetched, built, replaced and said."""

from __future__ import annotations

import json

import pytest

from tests.unit.host import dockerlike as fake
from tests.unit.host.checkout import REPOSITORY, Checkout, Fake
from tests.unit.host.test_commands import RUNS
from tests.unit.host.test_up import flat
from torchtap.variants import VARIANTS

BASE = VARIANTS["cu130"].base
PULLED = {"when": f"^pull --quiet {BASE}", "out": BASE + "\n"}
REFUSED = {
    "when": "^pull",
    "rc": 1,
    "err": "Error response from daemon: Get https://registry.example/v2/: no such host\n",
}


def manifest(torchtap: str = "0.1.0", **versions: str) -> str:
    """What the image says of itself, and torchtap's folder."""
    said = {"torch": "2.14.1", "cuda": "13.0", "python": "3.12.3", "base": BASE, **versions}
    return (
        json.dumps(said, indent=2)
        + f"\n\n/opt/torchtap/venv/lib/python3.12/site-packages/torchtap-{torchtap}.dist-info\n"
    )


def told(text: str, **more: str) -> dict[str, str]:
    return {"when": "^run .*manifest.json", "out": text, **more}


def images(old: str, new: str) -> tuple[fake.Row, ...]:
    """The image's id before the build and after it."""
    rows: list[fake.Row] = [{"when": "^image inspect", "after": "compose build", "out": new + "\n"}]
    return (*rows, {"when": "^image inspect", "out": old + "\n"}) if old else (*rows,)


@pytest.fixture(autouse=True)
def checkout_with_dockerfile(checkout: Checkout) -> None:
    (checkout.root / "Dockerfile").write_text((REPOSITORY / "Dockerfile").read_text())
    checkout.env.update(JUPYTER_PORT="48888", SSH_PORT="42222", MODE="cpu")


def answer(checkout: Checkout, *rows: fake.Row, image: str = "sha256:aaaa") -> Fake:
    container = fake.container(Image=image)
    return checkout.fake("docker").answer(*fake.engine(*rows, inspect=container))


def test_a_new_base_is_built_on_and_what_runs_is_replaced(checkout: Checkout) -> None:
    docker = answer(
        checkout, RUNS, PULLED, told(manifest("0.2.0", python="3.12.5"), after="compose build"), told(manifest()),
        *images("sha256:aaaabbbbccccdddd", "sha256:ffff"), image="sha256:aaaabbbbccccdddd",
    )  # fmt: skip
    done = checkout.run("update")
    assert done.returncode == 0, done.stdout + done.stderr
    assert docker.called("^compose build --pull dev$")
    assert docker.called("^compose up --detach --no-build dev$")
    said = flat(done.stdout)
    assert "torchtap:cu130, before -> now torchtap 0.1.0 -> 0.2.0" in said
    assert "Python 3.12.3 -> 3.12.5" in said
    assert "PyTorch 2.14.1, as before" in said
    assert "kept workspace, home, keys and token" in said
    assert done.stdout.endswith("docker tag aaaabbbbcccc torchtap:cu130 && make up BUILD=no\n")
    assert not docker.called("down|volume")


def test_nothing_new_leaves_the_container_alone(checkout: Checkout) -> None:
    docker = answer(checkout, RUNS, PULLED, told(manifest()), *images("sha256:aaaa", "sha256:aaaa"))
    done = checkout.run("update")
    assert done.returncode == 0, done.stderr
    assert flat(done.stdout).endswith("update nothing changed: torchtap:cu130 is up to date and runs")
    assert not docker.called("compose up")


def test_a_container_of_an_older_image_is_replaced_though_the_build_changed_nothing(
    checkout: Checkout,
) -> None:
    docker = answer(
        checkout, RUNS, PULLED, told(manifest()), *images("sha256:aaaa", "sha256:aaaa"), image="sha256:old"
    )
    assert checkout.run("update").returncode == 0
    assert docker.called("^compose up --detach --no-build dev$")


def test_without_a_registry_it_builds_on_the_base_that_is_here_and_says_so(checkout: Checkout) -> None:
    docker = answer(checkout, REFUSED, told(manifest()), *images("sha256:aaaa", "sha256:aaaa"))
    done = checkout.run("update")
    assert done.returncode == 0, done.stderr
    said = flat(done.stdout)
    assert "warning the base could not be fetched: Get https://registry.example/v2/: no such host" in said
    assert docker.called("^compose build dev$")


def test_nothing_running_is_built_and_not_started(checkout: Checkout) -> None:
    docker = answer(checkout, PULLED, told(manifest()), *images("", "sha256:ffff"))
    done = checkout.run("update")
    assert done.returncode == 0, done.stderr
    assert "torchtap:cu130 is built; make up starts it." in flat(done.stdout)
    assert not docker.called("compose up")


def test_a_build_that_fails_touches_nothing_that_runs(checkout: Checkout) -> None:
    docker = answer(
        checkout,
        RUNS,
        PULLED,
        {"when": "^compose build", "rc": 17},
        told(manifest()),
        *images("sha256:aaaa", ""),
    )
    done = checkout.run("update")
    assert done.returncode == 1
    assert not docker.called("compose up")


def test_a_base_pinned_by_digest_is_said_to_be_fixed(checkout: Checkout) -> None:
    digest = "sha256:" + "a" * 64
    file = checkout.root / "Dockerfile"
    file.write_text(file.read_text().replace(f"FROM {BASE} ", f"FROM {BASE}@{digest} "))
    docker = answer(
        checkout,
        {"when": f"^pull --quiet {BASE}@{digest}$"},
        told(manifest()),
        *images("sha256:a", "sha256:a"),
    )
    done = checkout.run("update")
    assert done.returncode == 0, done.stderr
    assert docker.called("@sha256:a")
    assert "pinned by its digest, so there is no newer one" in flat(done.stdout)


def test_a_base_of_the_users_own_is_the_one_that_is_fetched(checkout: Checkout) -> None:
    docker = answer(
        checkout, {"when": "^pull --quiet my/base:1$"}, told(manifest()), *images("sha256:a", "sha256:a")
    )
    assert checkout.run("update", env={"BASE_IMAGE": "my/base:1"}).returncode == 0
    assert docker.called("^pull --quiet my/base:1$")
