"""The bill of materials: what it says of an inventory. Of the image itself: tests/image/test_variants.py."""

from __future__ import annotations

import copy
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.validation.json import JsonStrictValidator

from host import inventory, proc, sbom
from host.show import Problem

FOUND: dict[str, Any] = {
    "image": {"name": "my/torchtap:cu130", "id": "sha256:" + "a" * 64, "created": "2026-01-02T03:04:05.678Z"},
    "manifest": {"variant": "cu130", "torch": "2.14.1", "nccl": [2, 30, 7]},
    "release": {"ID": "debian", "VERSION_ID": "12"},
    "python": [
        {
            "name": "Typing_Extensions",
            "version": "4.1",
            "summary": "Backports",
            "homepage": "https://example.org/",
            "expression": "PSF-2.0",
            "licence": "",
            "classifiers": [],
        },
        {
            "name": "old",
            "version": "1+local",
            "summary": "",
            "homepage": "UNKNOWN",
            "expression": "",
            "licence": "Permission is hereby granted\nand so on",
            "classifiers": ["License :: OSI Approved :: MIT License"],
        },
    ],
    "os": [
        {
            "name": "g++",
            "version": "4:12.2.0-3",
            "architecture": "amd64",
            "source": "gcc-defaults",
            "homepage": "",
            "licences": ["GPL-2+", "MIT", "MIT AND Zlib"],
        }
    ],
}


def made(**changes: Any) -> dict[str, Any]:
    return json.loads(sbom.as_json(sbom.bill({**copy.deepcopy(FOUND), **changes})))  # type: ignore[no-any-return]


def by_name(bill: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in bill["components"] if each["name"] == name)


def test_the_image_its_packages_and_their_licences_are_in_it() -> None:
    bill = made()
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    about = bill["metadata"]["component"]
    assert (about["type"], about["name"], about["version"]) == ("container", "my/torchtap", "cu130")
    assert {"name": "torchtap:nccl", "value": "[2, 30, 7]"} in about["properties"]
    python = by_name(bill, "Typing_Extensions")
    assert python["purl"] == "pkg:pypi/typing-extensions@4.1"
    assert python["licenses"] == [{"license": {"acknowledgement": "declared", "id": "PSF-2.0"}}]
    assert python["externalReferences"][0]["url"] == "https://example.org/"
    package = by_name(bill, "g++")
    assert package["purl"] == "pkg:deb/debian/g%2B%2B@4:12.2.0-3?arch=amd64&distro=debian-12"
    names = [each["license"].get("name") or each["license"]["id"] for each in package["licenses"]]
    assert sorted(names) == ["GPL-2+", "MIT", "MIT AND Zlib"], "an expression beside others is a name"


def test_a_licence_field_that_holds_the_text_gives_way_to_the_classifier() -> None:
    old = by_name(made(), "old")
    assert old["licenses"] == [{"license": {"acknowledgement": "declared", "name": "MIT License"}}]
    assert "externalReferences" not in old


def test_the_image_is_said_to_hold_every_component() -> None:
    bill = made()
    (root,) = [each for each in bill["dependencies"] if each["ref"] == FOUND["image"]["id"]]
    assert set(root["dependsOn"]) == {each["bom-ref"] for each in bill["components"]}


def test_the_same_image_gives_the_same_bytes_and_another_another_serial() -> None:
    assert sbom.as_json(sbom.bill(FOUND)) == sbom.as_json(sbom.bill(copy.deepcopy(FOUND)))
    other = made(image={**FOUND["image"], "id": "sha256:" + "b" * 64})
    assert other["serialNumber"] != made()["serialNumber"]
    assert made()["metadata"]["timestamp"] == "2026-01-02T03:04:05+00:00"


def test_a_bill_that_does_not_fit_the_schema_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JsonStrictValidator, "validate_str", lambda *_: "'x' is not of type 'array'\nmore")
    with pytest.raises(Problem, match=r"does not fit CycloneDX 1\.6: 'x' is not of type 'array'"):
        sbom.as_json(sbom.bill(FOUND))


def test_no_image_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "ask", lambda *_, **__: proc.Done(1, "", "Error: No such image: x"))
    with pytest.raises(Problem, match="there is no image x here: Error: No such image: x") as caught:
        sbom.read("x")
    assert caught.value.do == ("Build it:  make build",)


def test_the_inventory_lists_what_this_python_has() -> None:
    found = {each["name"]: each["version"] for each in inventory.python_distributions()}
    assert found["torch"] == metadata.version("torch")


def test_the_inventory_needs_nothing_but_the_standard_library() -> None:
    done = proc.ask(
        [
            sys.executable,
            "-IS",
            "-c",
            Path(inventory.__file__).read_text().replace("    main()\n", "    pass\n"),
        ]
    )
    assert done.ok, done.err


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            "Format: https://x/\nFiles: *\nLicense: GPL-2+\n text\n\nLicense: Expat\n\nLicense: GPL-2+\n",
            ["Expat", "GPL-2+"],
        ),
        ("This is prose.\nLicense: whatever\n", []),
    ],
    ids=["machine-readable", "prose"],
)
def test_licences_come_from_machine_readable_files_alone(tmp_path: Path, text: str, names: list[str]) -> None:
    file = tmp_path / "copyright"
    file.write_text(text)
    assert inventory.licences(file) == names
    assert inventory.licences(tmp_path / "none") == []
