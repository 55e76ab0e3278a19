"""`make sbom`: a bill of materials of the built image, in CycloneDX. Needs the tools in .venv (cyclonedx-python-lib).

The same image gives the same bytes: the time is the image's own, the serial number is made from its id. Nothing is
looked up anywhere; the container that is asked has no network.
"""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, License, LicenseAcknowledgement
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from host import places, proc
from host.paths import Paths
from host.settings import Settings
from host.show import FAILED, Problem, say
from torchtap.variants import DEFAULT

INVENTORY = Path(__file__).with_name("inventory.py")
PYTHON = "/opt/torchtap/venv/bin/python"
NAMESPACE = uuid.UUID("5a1d4b0e-7c1c-5d5e-9c53-3f0f0c5f7d10")  # of Torchtap's own bills
LONG = 200  # a licence field longer than this holds the text, not the name
LICENCES = LicenseFactory()


def read(image: str) -> dict[str, Any]:
    """Ask the image what is in it. Raises `Problem` when it cannot be asked."""
    looked = proc.ask(["docker", "image", "inspect", image])
    if not looked.ok:
        raise Problem(f"there is no image {image} here: {looked.said}", "Build it:  make build", code=FAILED)
    about = json.loads(looked.out)[0]
    command = ["run", "--rm", "--network", "none", "--entrypoint", PYTHON, image, "-I", "-c"]
    done = proc.ask(["docker", *command, INVENTORY.read_text()], timeout_s=120)
    try:
        found: dict[str, Any] = json.loads(done.out)
    except ValueError:
        raise Problem(f"{image} does not say what is in it: {done.said}", code=FAILED) from None
    return {**found, "image": {"name": image, "id": about["Id"], "created": about["Created"]}}


def bill(found: Mapping[str, Any], serial: uuid.UUID | None = None) -> Bom:
    """The bill for what `inventory.py` found. Pure."""
    image = found["image"]
    name, _, tag = image["name"].rpartition(":")
    container = Component(
        type=ComponentType.CONTAINER,
        name=name,
        version=tag,
        bom_ref=image["id"],
        properties=[
            Property(name=f"torchtap:{key}", value=text(value))
            for key, value in sorted(found["manifest"].items())
        ],
    )
    components = [*map(python_component, found["python"]), *os_components(found)]
    made = Bom(
        components=components,
        metadata=BomMetaData(component=container, timestamp=when(image["created"])),
        serial_number=serial or uuid.uuid5(NAMESPACE, image["id"]),
    )
    made.register_dependency(container, components)
    return made


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def when(stamp: str) -> datetime:
    """Docker's time stamp, without the fraction of a second.

    >>> when("2026-01-02T03:04:05.678901234Z").isoformat()
    '2026-01-02T03:04:05+00:00'
    """
    return datetime.fromisoformat(stamp[:19] + "+00:00")


def python_component(each: Mapping[str, Any]) -> Component:
    purl = PackageURL("pypi", name=each["name"].lower().replace("_", "-"), version=each["version"])
    return component(each, purl, python_licences(each))


def python_licences(each: Mapping[str, Any]) -> list[str]:
    """The expression where there is one; else the licence field if it is a name; else the classifiers.

    >>> python_licences({"expression": "", "licence": "MIT", "classifiers": []})
    ['MIT']
    >>> python_licences({"expression": "", "licence": "", "classifiers": ["License :: OSI Approved :: BSD License"]})
    ['BSD License']
    """
    if each["expression"]:
        return [each["expression"]]
    field = each["licence"].strip()
    if field and "\n" not in field and len(field) <= LONG and field.upper() != "UNKNOWN":
        return [field]
    return sorted({line.rpartition(" :: ")[2] for line in each["classifiers"]} - {"OSI Approved"})


def os_components(found: Mapping[str, Any]) -> list[Component]:
    """dpkg's packages, with the distribution in their purl."""
    system = found["release"]
    distribution = f"{system['ID']}-{system.get('VERSION_ID', '')}".rstrip("-")
    components = []
    for each in found["os"]:
        qualifiers = {"arch": each["architecture"], "distro": distribution}
        purl = PackageURL("deb", system["ID"], each["name"], each["version"], qualifiers)
        components.append(component(each, purl, each["licences"]))
    return components


def component(each: Mapping[str, Any], purl: PackageURL, names: Sequence[str]) -> Component:
    homepage = each.get("homepage") or ""
    links = (
        [ExternalReference(type=ExternalReferenceType.WEBSITE, url=XsUri(homepage))]
        if homepage.startswith(("http://", "https://"))
        else []
    )
    return Component(
        type=ComponentType.LIBRARY,
        name=each["name"],
        version=each["version"],
        description=each.get("summary") or None,
        purl=purl,
        bom_ref=purl.to_string(),
        external_references=links,
        licenses=declared(names),
    )


def declared(names: Sequence[str]) -> list[License]:
    """SPDX ids as ids, a single expression as one, everything else by its name."""
    made = LicenseAcknowledgement.DECLARED
    found: list[License] = []
    for name in names:
        one = LICENCES.make_from_string(name, license_acknowledgement=made)
        # CycloneDX takes an expression alone or a list of licences, not both.
        alone = len(names) == 1 or isinstance(one, DisjunctiveLicense)
        found.append(one if alone else DisjunctiveLicense(name=name, acknowledgement=made))
    return found


def as_json(made: Bom) -> str:
    """The bill as text, checked against the schema. Raises `Problem` when it does not hold."""
    written = JsonV1Dot6(made).output_as_string(indent=2) + "\n"
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(written)
    if wrong is not None:
        raise Problem(f"the bill does not fit CycloneDX 1.6: {str(wrong).splitlines()[0]}", code=FAILED)
    return written


def sbom(argv: Sequence[str]) -> int:
    """Write the bill of the image that make builds; --output - is stdout."""
    parser = argparse.ArgumentParser(prog="sbom", description=__doc__.splitlines()[0])
    parser.add_argument("--output", metavar="FILE", help="default: build/IMAGE-VARIANT.cdx.json; - is stdout")
    parser.add_argument("--image", help="another image than the one that make builds")
    parser.add_argument(
        "--random-serial", action="store_true", help="a serial number of its own for this bill"
    )
    options = parser.parse_args(argv)
    paths = Paths()
    image = options.image or image_of(places.settings(paths))
    found = read(image)
    written = as_json(bill(found, uuid.uuid4() if options.random_serial else None))
    if options.output == "-":
        sys.stdout.write(written)
        return 0
    target = Path(options.output) if options.output else paths.root / "build" / f"{file_name(image)}.cdx.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"{target.name}.tmp")
    draft.write_text(written)
    draft.replace(target)
    say(
        "sbom",
        f"{paths.short(target.resolve())}: {len(found['python'])} Python distributions, {len(found['os'])} OS packages",
    )
    return 0


def image_of(settings: Settings) -> str:
    """The image that make builds, for VARIANT or the default."""
    return f"{settings.get('TORCHTAP_IMAGE', 'torchtap')}:{settings.get('VARIANT') or DEFAULT}"


def file_name(image: str) -> str:
    """An image's name as part of a file's.

    >>> file_name("my/torchtap:cu130")
    'my-torchtap-cu130'
    """
    return image.replace("/", "-").replace(":", "-")
