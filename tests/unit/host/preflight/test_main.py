"""scripts/preflight as a user runs it, and what it shows."""

from __future__ import annotations

import json

import pytest

from host.preflight import page
from host.preflight.checks import CHECKS, judge_all
from tests.unit.host import dockerlike as fake
from tests.unit.host.checkout import REPOSITORY, Checkout
from tests.unit.host.preflight.hosts import HOSTS, Row
from tests.unit.host.test_up import flat


@pytest.fixture(autouse=True)
def ports(checkout: Checkout) -> None:
    checkout.env.update(JUPYTER_PORT="48888", SSH_PORT="42222")


def test_a_bare_host_with_an_engine(checkout: Checkout) -> None:
    """No torch, no .venv: only Python and a PATH with a docker."""
    checkout.fake("docker").answer(*fake.engine())
    done = checkout.run("preflight")
    assert done.returncode == 0, done.stdout + done.stderr
    said = flat(done.stdout)
    assert "pass engine.docker 28.2.2 (needed: 25.0)" in said
    assert "pass engine.compose 2.30.1 (needed: 2.26)" in said
    assert "pass port.jupyter port 48888 can be had" in said
    assert said.endswith(
        "make up would take mode cpu, variant cu130 (most likely: Docker is asked for a GPU first): nothing is in "
        "its way."
    )
    here = str(checkout.root)  # a word is never broken
    assert (
        "skip gpu.pci, driver.smi, gpu.count, driver.version, gpu.variant, engine.gpu, engine.cgroups" in said
    )
    assert [line for line in done.stdout.splitlines() if len(line) > 80 and here not in line] == []


def test_json_is_alone_on_stdout_with_every_check(checkout: Checkout) -> None:
    checkout.fake("docker").answer(*fake.engine())
    done = checkout.run("preflight", "--json")
    found = json.loads(done.stdout)
    assert (found["preflight"], found["verdict"]) == (1, "pass")
    assert "schema" not in found, "no self-test report: --merge must not count it"
    assert [each["id"] for each in found["results"]] == [check.id for check in CHECKS]
    assert found["choice"]["variant"] == "cu130"


def test_what_is_in_the_way_is_exit_code_1_and_named_at_the_end(checkout: Checkout) -> None:
    checkout.fake("docker").answer(*fake.engine(fake.BROKEN))
    done = checkout.run("preflight")
    assert done.returncode == 1
    said = flat(done.stdout)
    assert "FAIL files.compose Compose cannot read its configuration: failed to read .env" in said
    assert (
        "next First mend files.compose, as told above (docker compose config --quiet). As it is, make up would stop."
        in said
    )


SMI = "0, GPU-11111111-2222-3333-4444-555555555550, NVIDIA H200, 590.48.01, 9.0\n"


def test_a_gpu_host_through_a_real_nvidia_smi(checkout: Checkout) -> None:
    checkout.fake("docker").answer(
        *fake.engine(info={"Runtimes": {"runc": {}, "nvidia": {}}, "CgroupDriver": "cgroupfs"})
    )
    checkout.fake("nvidia-smi").answer({"when": "query-gpu", "out": SMI})
    checkout.fake("nvidia-ctk").answer({"when": "", "out": "NVIDIA Container Toolkit CLI version 1.17.8\n"})
    done = checkout.run("preflight")
    said = flat(done.stdout)
    assert done.returncode == 0, done.stdout
    assert "pass gpu.variant cu130 for NVIDIA H200 (9.0)" in said
    assert "pass engine.gpu by its runtime nvidia; NVIDIA Container Toolkit 1.17.8" in said
    assert said.endswith("make up would take mode gpu, variant cu130: nothing is in its way.")


def test_a_lost_gpu_is_no_pass_although_nvidia_smi_ends_well(checkout: Checkout) -> None:
    checkout.fake("docker").answer(*fake.engine())
    lost = "1, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]\n"
    checkout.fake("nvidia-smi").answer({"when": "query-gpu", "out": SMI + lost})
    done = checkout.run("preflight")
    assert done.returncode == 1
    assert "FAIL driver.smi 1, [GPU is lost]" in flat(done.stdout)
    assert "cause GPU 1: no answer any more" in flat(done.stdout)


def test_the_table_in_the_docs_is_that_of_the_source(checkout: Checkout) -> None:
    table = page.check_table()
    assert table in (REPOSITORY / "docs/host.md").read_text()
    assert checkout.run("preflight", "--markdown").stdout == f"{table}\n"


@pytest.mark.parametrize("row", HOSTS, ids=lambda row: row.name)
def test_the_last_sentence_says_what_to_do_first(row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    results = judge_all(row.facts)
    page.draw(results)
    shown = capsys.readouterr().out
    first = page.first_of(results)
    sentence = page.next_step(row.facts, results)
    assert sentence.endswith(".")
    if first is None:
        assert sentence.endswith("nothing is in its way.")
        assert "cause" not in shown
    else:
        assert first.id in sentence
        assert f"{first.status.value.upper():<10}{first.id}" in shown


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nvidia_runtime", "make up would take mode gpu, variant cu130"),
        ("mismatch", "make up would take mode cpu, variant cu130"),
        ("gpu_and_no_toolkit", "make up would take mode cpu, variant cu130"),
        ("driver_550", "make up would take mode gpu, variant cu128"),
        ("no_docker", "make up would take mode local, variant cu130"),
        ("no_gpu_but_asked_for", "make up would stop"),
        ("disk_full", "make up would stop"),
    ],
)
def test_what_make_up_would_come_to_is_foretold(name: str, says: str) -> None:
    found = next(row.facts for row in HOSTS if row.name == name)
    assert says in page.next_step(found, judge_all(found))
