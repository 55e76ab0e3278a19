"""Simulated hosts: each loads; a wrong one is refused with one clear line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engine.simulate.hosts import RECORDED, HostError, load, names, parse

GOOD = {"driver": "590.48.01", "cuda": "13.1"}


@pytest.mark.parametrize("name", names())
def test_every_host_loads_and_says_what_it_is_for(name: str) -> None:
    host = load(name)
    assert host.about.endswith(".")
    assert host.cuda_driver_version >= 12000


@pytest.mark.parametrize(
    ("description", "says"),
    [
        ({**GOOD, "drivr": "1"}, "unknown key 'drivr'"),
        ({"cuda": "13.1"}, "'driver' is missing"),
        ({**GOOD, "nodes": "gone"}, "nodes is 'gone': one of ok, denied, unreadable"),
        ({**GOOD, "answers": {"al": {"text": "", "rc": 0}}}, "answers has 'al': one of all, table"),
        ({**GOOD, "answers": {"all": {"rc": 0}}}, "an answer needs 'recorded' or 'text', and 'rc'"),
        ({**GOOD, "answers": {"all": {"text": ""}}}, "an answer needs 'recorded' or 'text', and 'rc'"),
        ({**GOOD, "gpus": [{}], "also": [{}, {}]}, "also is a list of 2 for 1 GPUs"),
        ({**GOOD, "gpus": {"recorded": "12_h200_590_table.txt"}}, "12_h200_590_table.txt is no csv,noheader"),
        ({**GOOD, "gpus": {"recorded": "nowhere.txt"}}, "nowhere.txt is no csv,noheader"),
        ({**GOOD, "cuda": "thirteen"}, "cuda is 'thirteen'"),
        ({**GOOD, "driver": "new"}, "driver is 'new'"),
    ],
)
def test_a_wrong_description_is_refused_with_file_and_reason(
    description: dict[str, object], says: str
) -> None:
    with pytest.raises(HostError) as caught:
        parse(description, "made", "made/host.json")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_host_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(HostError, match=r"no simulated host 'nosuch': one of .*h200-good"):
        load("nosuch")


def test_a_name_cannot_leave_the_folder(tmp_path: Path) -> None:
    (tmp_path / "host.json").write_text(json.dumps(GOOD))
    (tmp_path / "hosts").mkdir()
    with pytest.raises(HostError):
        load("..", tmp_path / "hosts")


def test_broken_json_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "host.json").write_text('{"driver": ')
    with pytest.raises(HostError, match=r"bad/host\.json: Expecting value: line 1 column 12"):
        load("bad", tmp_path)


def test_hosts_of_a_test_come_before_those_of_the_repository(tmp_path: Path) -> None:
    (tmp_path / "h200-good").mkdir()
    (tmp_path / "h200-good" / "host.json").write_text(json.dumps({**GOOD, "about": "mine"}))
    assert load("h200-good", tmp_path).about == "mine"


def test_also_adds_and_overrides_cells_and_the_index_counts() -> None:
    two = parse({**GOOD, "gpus": [{"name": "A"}, {"name": "B"}], "also": [{}, {"name": "C"}]}, "made")
    assert [(gpu["index"], gpu["name"]) for gpu in two.gpus] == [("0", "A"), ("1", "C")]


def test_every_recorded_output_is_in_the_manifest() -> None:
    listed = {line.split("\t")[1] for line in (RECORDED / "manifest.tsv").read_text().splitlines()[1:]}
    assert {file.name for file in RECORDED.glob("[0-9]*")} == listed
