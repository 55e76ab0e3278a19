"""Which repositories git is told of, and in what words."""

from __future__ import annotations

import subprocess
from pathlib import Path

from entrypoint.repositories import LOOKED_AT, configuration, found_in

ODD = ('with "quotes"', "back\\slash", "two words", "hash # and ; semicolon", "ünïcode")


def test_folders_with_a_git_folder_or_file_count_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "clone/.git").mkdir(parents=True)
    (tmp_path / "submodule").mkdir()
    (tmp_path / "submodule/.git").write_text("gitdir: ../.git/modules/submodule\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "file").touch()
    assert found_in(tmp_path) == [tmp_path / "clone", tmp_path / "submodule"]


def test_a_workspace_that_is_none_has_none(tmp_path: Path) -> None:
    assert found_in(tmp_path / "missing") == []
    (tmp_path / "file").touch()
    assert found_in(tmp_path / "file") == []
    assert configuration([]) == ""


def test_of_a_folder_full_of_data_only_the_first_entries_are_looked_at(tmp_path: Path) -> None:
    for number in range(LOOKED_AT + 10):
        (tmp_path / f"{number}/.git").mkdir(parents=True)
    assert len(found_in(tmp_path)) == LOOKED_AT


def test_git_reads_the_names_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "gitconfig"
    file.write_text(configuration(Path("/workspace") / name for name in ODD))
    command = ["git", "config", "--file", str(file), "--null", "--get-all", "safe.directory"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.split("\0")[:-1] == [f"/workspace/{name}" for name in ODD]
