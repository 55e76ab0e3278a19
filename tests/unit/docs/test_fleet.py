"""docs/fleet.md: every block is valid, every option exists, and the scripts do what the page says of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

import torchtap
from torchtap.selftest.examples import examples
from torchtap.selftest.fleet.drawing import MOST
from torchtap.selftest.fleet.examples import example
from torchtap.selftest.prometheus import to_prometheus

PAGE = (Path(__file__).parents[3] / "docs" / "fleet.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SHELL = [text for language, text in BLOCKS if language == "bash"]
YAML = [list(yaml.safe_load_all(text)) for language, text in BLOCKS if language == "yaml"]
SHELLCHECK = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def scripts() -> list[str]:
    """The shell of the page, that in YAML too."""
    (cloud,) = [doc for (doc,) in YAML if isinstance(doc, dict) and "write_files" in doc]
    return [*SHELL, *(file["content"] for file in cloud["write_files"])]


def script(marker: str) -> str:
    """The one with these words."""
    (found,) = [text for text in scripts() if marker in text]
    return found


@pytest.mark.skipif(SHELLCHECK is None, reason="no shellcheck")
@pytest.mark.parametrize("text", scripts(), ids=lambda text: text.strip().splitlines()[-1][:40])
def test_shell_is_clean(text: str):
    """By shellcheck, as bash."""
    done = subprocess.run([str(SHELLCHECK), "-s", "bash", "-"], input=text, capture_output=True, text=True)
    assert done.stdout == ""


def test_every_block_is_of_its_language():
    """YAML and JSON parse; there are no others."""
    assert {language for language, _ in BLOCKS} == {"bash", "yaml", "json", "text"}
    assert len(YAML) == 4
    for language, text in BLOCKS:
        assert language != "json" or json.loads(text)


def options_of(text: str) -> set[str]:
    """What follows `selftest` in commands and in lists of arguments."""
    words = re.findall(r"selftest[, ]((?:[^\n|>;\\']|\\\n)*)", text)
    return {option for each in words for option in re.findall(r"(?<![\w-])--[a-z-]+", each)}


def test_every_option_exists():
    """In the scripts, the YAML and the text: as --help has them."""
    done = subprocess.run(
        [sys.executable, "-m", "torchtap.cli", "selftest", "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(torchtap.__file__).parents[1]), "COLUMNS": "80"},
    )
    known = set(re.findall(r"--[a-z-]+", done.stdout))
    used = options_of(PAGE)
    assert {"--one-line", "--json", "--merge", "--prometheus", "--level", "--expect-gpus", "--output"} <= used
    assert used <= known
    variables = set(re.findall(r"TORCHTAP_[A-Z_]+", PAGE))
    source = "".join(path.read_text() for path in (Path(torchtap.__file__).parent / "selftest").rglob("*.py"))
    assert all(variable in source for variable in variables)


def test_metrics_of_the_page_are_written():
    """In the alerts and in the table; and the table misses none."""
    metrics = to_prometheus(dict(examples())["warnings"])
    written = set(re.findall(r"^# TYPE (\S+)", metrics, re.MULTILINE))
    (rules,) = [doc for (doc,) in YAML if isinstance(doc, dict) and "groups" in doc]
    used = {
        name
        for rule in rules["groups"][0]["rules"]
        for name in re.findall(r"torchtap_selftest_\w+", rule["expr"])
    }
    assert used == {"torchtap_selftest_ready", "torchtap_selftest_timestamp_seconds"}
    table = set(re.findall(r"^\| `(torchtap_selftest_\w+)` \|", PAGE, re.MULTILINE))
    assert table == written


def test_the_job_gets_what_a_self_test_needs():
    """All GPUs, shared memory, its node's name; never a second try."""
    (job,) = [doc for (doc,) in YAML if isinstance(doc, dict) and doc.get("kind") == "Job"]
    assert job["spec"]["backoffLimit"] == 0
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["restartPolicy"] == "Never"
    assert container["args"][0] == "selftest"
    assert "command" not in container  # the entrypoint stays
    env = {each["name"]: each for each in container["env"]}
    assert env["NODE_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    assert int(env["TORCHTAP_EXPECT_GPUS"]["value"]) == container["resources"]["limits"]["nvidia.com/gpu"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}} in pod["volumes"]
    # the loop replaces NODE at the end of a line, and nothing else
    (block,) = [text for language, text in BLOCKS if language == "yaml" and "kind: Job" in text]
    replaced = yaml.safe_load(re.sub("NODE$", "n1", block, flags=re.MULTILINE))
    assert replaced["metadata"]["name"] == "torchtap-selftest-n1"
    assert replaced["spec"]["template"]["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "n1"}


Host = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Run a script where docker runs the self-test as a container would; scontrol and logger note their words."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    python, source = shlex.quote(sys.executable), shlex.quote(str(Path(torchtap.__file__).parents[1]))
    docker = f"""#!/bin/bash
while [[ $# -gt 0 && $1 != selftest ]]; do
  if [[ $1 == -e ]]; then export "${{2?}}"; shift; fi
  shift
done
shift
PYTHONPATH={source} exec {python} -m torchtap.cli selftest "$@" $TEST_MORE
"""
    note = f'#!/bin/bash\necho "${{0##*/}} $*" >> {shlex.quote(str(tmp_path / "said"))}\n'
    for name, text in {
        "docker": docker,
        **dict.fromkeys(("scontrol", "logger", "systemctl", "ssh-real"), note),
    }.items():
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)
    (bin_folder / "ssh").write_text('#!/bin/bash\nwhile [[ $1 == -o ]]; do shift 2; done\nshift\nexec "$@"\n')
    (bin_folder / "ssh").chmod(0o755)
    (bin_folder / "torchtap").write_text(
        f'#!/bin/bash\nPYTHONPATH={source} exec {python} -m torchtap.cli "$@" $TEST_MORE\n'
    )
    (bin_folder / "torchtap").chmod(0o755)

    def run(text: str, *words: str | Path, more: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        text = text.replace("export PATH=", f"export PATH={shlex.quote(str(bin_folder))}:")
        text = text.replace("/var/log/", f"{tmp_path}/")
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("TORCHTAP_", "NVIDIA_", "CUDA_"))
        }
        return subprocess.run(
            ["bash", "-c", text, "script", *map(str, words)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=120,
            env={**clean, "PATH": f"{bin_folder}:{os.environ['PATH']}", "TEST_MORE": more, **env},
        )

    return run


GOOD = "--device cpu --only cpu.matmul"
NO_GPU = pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")


@NO_GPU
def test_the_prolog_lets_a_job_start_or_not(host: Host, tmp_path: Path):
    """By its exit code; the cause stands in the log; a job without GPUs starts nothing."""
    text = script("50-torchtap")
    assert host(text).returncode == 0
    assert not (tmp_path / "said").exists()
    node = {"SLURM_JOB_GPUS": "0,1", "SLURMD_NODENAME": "node017"}
    done = host(text, more="--only device.nodes", **node)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert re.match(r"logger -t torchtap node017 fail: \w+: ", (tmp_path / "said").read_text())
    (tmp_path / "said").unlink()
    assert host(text.replace("-e TORCHTAP_EXPECT_GPUS=8", ""), more=GOOD, **node).returncode == 0
    assert (tmp_path / "said").read_text().startswith("logger -t torchtap node017 pass: ")


@NO_GPU
def test_the_health_check_drains_with_the_cause_as_reason(host: Host, tmp_path: Path):
    """And leaves a good node alone; where nothing answers it says that."""
    text = script("State=DRAIN")
    host(text, more="--only device.nodes", SLURMD_NODENAME="node017")
    said = (tmp_path / "said").read_text()
    assert said.startswith("scontrol update NodeName=node017 State=DRAIN Reason=node017 fail: ")
    (tmp_path / "said").unlink()
    host(text.replace("-e TORCHTAP_EXPECT_GPUS=8", ""), more=GOOD, SLURMD_NODENAME="node017")
    assert not (tmp_path / "said").exists()
    host(text, more="--bogus", SLURMD_NODENAME="node017")
    assert "Reason=torchtap: no answer, exit code 2" in (tmp_path / "said").read_text()


def test_the_loop_over_ssh_ends_in_a_table(host: Host, tmp_path: Path):
    """One report a host, by its own name; a host that gives none is named."""
    (tmp_path / "hosts").write_text("node1\nnode2\n")
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "node3.json").touch()
    text = script("BatchMode").replace("selftest --json", "selftest --json --device cpu")
    done = host(text)
    assert done.stderr == ""
    assert "BAD     reports/node3.json: empty\n" in done.stdout
    assert "pass    2 hosts\n        node[1-2]\n" in done.stdout
    assert done.returncode == 1


def test_the_metrics_of_a_container_are_replaced_whole(host: Host, tmp_path: Path):
    """Also of a host that fails; nothing is replaced where nothing came."""
    folder = tmp_path / "textfile"
    folder.mkdir()
    text = script(".torchtap.part")
    assert host(text, folder, more=GOOD).returncode == 0
    before = (folder / "torchtap.prom").read_text()
    assert "torchtap_selftest_ready 1\n" in before
    assert host(text, folder, more="--bogus").returncode == 2
    assert (folder / "torchtap.prom").read_text() == before
    if not Path("/dev/nvidiactl").exists():
        assert host(text, folder, more="--only device.nodes").returncode == 1
        assert "torchtap_selftest_ready 0\n" in (folder / "torchtap.prom").read_text()


def test_the_first_boot_lets_only_a_good_host_join(host: Host, tmp_path: Path):
    """The report is kept either way."""
    text = script("systemctl enable").replace("--level full", "").replace("-e TORCHTAP_EXPECT_GPUS=8", "")
    assert host(text, more=GOOD).returncode == 0
    assert (tmp_path / "said").read_text() == "systemctl enable --now slurmd\n"
    assert json.loads((tmp_path / "torchtap-selftest.json").read_text())["verdict"] == "pass"
    (tmp_path / "said").unlink()
    assert host(text, more="--device tpu").returncode == 2
    assert (tmp_path / "said").read_text().startswith("logger -t torchtap the self-test ended with 2")


def test_the_plugin_is_one_line_with_the_self_tests_code(host: Host):
    """What node-problem-detector reads."""
    done = host(script("torchtap.sh"), more=GOOD, NODE_NAME="node017")
    assert (done.returncode, done.stdout) == (0, "node017 pass: 2 passed, 0 skipped; no GPU, by design\n")


def test_the_json_of_a_merge_is_as_the_page_says():
    """Its keys, in this order; the table of the page is one that is drawn."""
    line = re.search(r"`--json` has (.*?)in this order", PAGE, re.DOTALL)
    assert line is not None
    assert re.findall(r"`(\w+)`", line[1]) == [
        key for key in example().to_dict() if key not in ("schema", "torchtap", "hosts")
    ] + ["hosts"]
    assert MOST == 10
