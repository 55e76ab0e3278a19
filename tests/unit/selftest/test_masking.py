"""Masking: what identifies a machine goes, what is needed to read a report stays."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest

from torchtap.selftest.examples import examples
from torchtap.selftest.identity import Identity
from torchtap.selftest.masking import host_names, mask, mask_all, pseudonym
from torchtap.selftest.oneline import to_one_line
from torchtap.selftest.smi import judge

FOLDER = Path(__file__).parents[2] / "fixtures" / "smi"
UUID = "GPU-1a2b3c4d-2222-3333-4444-555555555500"


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        (f"GPU 0: NVIDIA H200 (UUID: {UUID})", "1a2b3c4d"),
        (f"MIG 1g.10gb Device 0: (UUID: MIG-{UUID}/7/0)", "1a2b3c4d"),
        (f"NVIDIA_VISIBLE_DEVICES={UUID},all", "1a2b3c4d"),
        ("    Serial Number                         : 1652922012345", "1652922012345"),
        ("0, NVIDIA H200, 1652922012345, 33", "1652922012345"),
        ("Chassis Serial Number : SN4711ABCD", "SN4711ABCD"),
        ('"serial": "1652922012345"', "1652922012345"),
        ("Nov 30 10:00:00 gpu-node-7 kernel: NVRM: Xid (PCI:0000:41:00): 79, words", "gpu-node-7"),
        ("2026-11-30T10:00:00.123456+00:00 gpu-node-7 kernel: NVRM: words", "gpu-node-7"),
        ("LD_LIBRARY_PATH=/home/alice/cuda/lib:/usr/lib", "alice"),
        ("on gpu7.example.org and gpu7: fine", "gpu7"),
        ("CUDA_VISIBLE_DEVICES: GPU-abcdef12, NVIDIA_VISIBLE_DEVICES: 0", "abcdef12"),
        ('{"NVIDIA_VISIBLE_DEVICES": "GPU-deadbeef,GPU-1a2b3c4d-22"}', "deadbeef"),
        ('{"NVIDIA_VISIBLE_DEVICES": "GPU-deadbeef,GPU-1a2b3c4d-22"}', "1a2b3c4d"),
        ("CUDA_VISIBLE_DEVICES=MIG-1a2b3c4d-2222", "1a2b3c4d"),
        ("CUDA_VISIBLE_DEVICES=MIG-GPU-1a2b3c4d/1/0", "1a2b3c4d"),
        ("/data/people/carol/man.json: No such file", "carol"),
        ("/data/people/carol/man.json: No such file", "people"),
        ("process 17 of carol", "carol"),
        ("ran on N7, not elsewhere", "N7"),
    ],
)
def test_what_identifies_a_machine_is_gone(text: str, gone: str):
    """UUIDs and their beginnings, serial numbers, host names, people."""
    hosts = {"gpu7.example.org", "gpu7", "n7"}
    masked = mask(text, hosts=hosts, users={"carol"}, homes={"/data/people/carol"})
    assert gone not in masked
    assert masked != text


def test_a_beginning_of_a_uuid_is_still_one():
    """So that a masked CUDA_VISIBLE_DEVICES still says which GPU is meant."""
    begins, whole = mask(f"GPU-1a2b3c4d {UUID}").split()
    assert whole.startswith(begins)


@pytest.mark.parametrize("name", ["torch", "cu130", "at", "130", "dev", "GPU", "nvidia", "localhost"])
def test_a_name_that_is_an_ordinary_word_mangles_no_text_and_is_gone_from_its_field(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    """A host or a user of that name: sentences, versions and evidence can still be read."""
    for variable in ("TORCHTAP_HOST", "USER", "LOGNAME"):
        monkeypatch.setenv(variable, name)
    text = "torch 2.14.1+cu130: GPU at 0000:41:00.0, nvidia driver 580.130 on localhost; dev is 130"
    assert mask(text, hosts={name}, homes=()) == text
    report = replace(dict(examples())["all is well"], identity=Identity(name=name))
    assert name not in report.masked().identity.name
    assert to_one_line(report.masked()).startswith("host-")


@pytest.mark.parametrize("name", ["ab", "n7", "node017.example.org", "my host"])
def test_a_host_is_gone_from_its_field_whatever_it_is_called(name: str):
    """Also with two letters; equal names stay equal."""
    report = replace(dict(examples())["all is well"], identity=Identity(name=name)).masked()
    assert not re.search(rf"\b{re.escape(name)}\b", report.to_json())
    assert report.identity.name == pseudonym("host-", name)


def test_the_user_is_known_by_the_environment(monkeypatch: pytest.MonkeyPatch):
    """$USER, $LOGNAME and a home that is not below /home."""
    monkeypatch.setenv("USER", "alicesecret")
    monkeypatch.setenv("LOGNAME", "bobsecret")
    monkeypatch.setenv("HOME", "/data/people/carolsecret/")
    masked = mask(
        "alicesecret bobsecret carolsecret /data/people/carolsecret/man.json /data/people/carolsecretx"
    )
    assert re.fullmatch(r"(user-\w{12} ){3}/home/user-\w{12}/man.json /data/people/carolsecretx", masked), (
        masked
    )
    for home in ("/", "", "/root"):
        monkeypatch.setenv("HOME", home)
        assert mask("/usr/bin /root/x") == "/usr/bin /root/x"


@pytest.mark.parametrize(
    "text",
    [
        "GPU 0000:41:00.0: RmInitAdapter failed! (0x62:0x65:1792)",
        "driver 580.65.06, CUDA 13.0, cuDNN 9.24.0, VBIOS 96.00.89.00.01",
        "0, NVIDIA H100 80GB HBM3, 81559, 0x0000000000000001, P0",
        "/opt/torchtap/venv/lib/python3.12/site-packages/torch/__init__.py",
        "[ 3606.832215] NVRM: Xid (PCI:0000:1a:00): 119, pid=67769, name=nvidia-smi",
        "Serial Number : N/A",
        "localhost",
    ],
)
def test_what_is_needed_to_read_a_report_stays(text: str):
    """Addresses, versions, products, numbers."""
    assert mask(text, hosts={"localhost", "gpu7"}) == text


def test_equal_things_stay_equal_and_others_differ():
    """Also beside MIG's prefix, and in capitals; another key gives other names."""
    one, same, other = mask(f"{UUID} {UUID.upper()} GPU-1a2b3c4d-2222-3333-4444-555555555501").split()
    assert one.lower() == same.lower() != other.lower()
    assert mask(UUID, key=b"a") == mask(UUID, key=b"a") != mask(UUID, key=b"b")


with (FOLDER / "manifest.tsv").open(newline="") as _manifest:
    CASES = list(csv.DictReader(_manifest, delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["file"])
def test_a_masked_output_is_judged_like_the_output_itself(case: dict[str, str]):
    """Every recorded output."""
    text = (FOLDER / case["file"]).read_text()
    rc = int(case["rc"]) if case["rc"] else None
    real, masked = (judge(each, rc, case["command"], case["kind"]) for each in (text, mask(text)))
    assert (real.verdict, real.causes) == (masked.verdict, masked.causes)


def test_a_whole_report_is_masked_but_for_its_keys():
    """Texts at any depth; numbers stay."""
    value = {"host": ["gpu7", {"serial": "1652922012345"}], "count": 1652922012345, "none": None}
    masked = mask_all(value, key=b"k", hosts={"gpu7"})
    assert "gpu7" not in str(masked["host"])  # type: ignore[index]
    assert "'1652922012345'" not in str(masked)
    assert masked["count"] == 1652922012345  # type: ignore[index]


def test_this_machines_names_are_known_without_a_name_server():
    """And they are masked by default."""
    for name in host_names():
        if len(name) > 2 and name not in ("localhost", "ubuntu", "debian", "root", "dev"):
            assert name not in mask(f"on {name}: words")
