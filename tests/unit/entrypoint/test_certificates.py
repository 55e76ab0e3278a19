"""Certificates that were mounted: what is taken, what is refused and why, and where it is put."""

from __future__ import annotations

import base64
import os
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from entrypoint import certificates, paths
from entrypoint.certificates import (
    ALL,
    EXTRA,
    LARGEST,
    MARK,
    VARIABLES,
    Trust,
    parse,
    pem,
    read,
    variables,
    write,
)
from entrypoint.mounts import Mount

from .conftest import needs_root

RUN = Path("/run/torchtap")
needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")


def authority(folder: Path, name: str) -> str:
    """A new certificate authority, as text."""
    folder.mkdir(exist_ok=True)
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-subj", f"/CN={name}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate.read_text()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("authorities")
    texts = {name: authority(folder, name) for name in ("old", "one", "two")}
    return {**texts, "key": (folder / "one.key").read_text()}


def binary(text: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(text)


# ---- one file ----
@needs_openssl
def test_every_certificate_of_a_file_is_taken_whatever_lies_between(made: dict[str, str]) -> None:
    text = f"# Company\n{made['one']}\nsubject=/CN=two\n{made['two'].replace(chr(10), chr(13) + chr(10))}"
    assert parse(text.encode()) == ([binary(made["one"]), binary(made["two"])], [])


@needs_openssl
def test_a_private_key_is_named_and_not_passed_on(made: dict[str, str]) -> None:
    found, problems = parse((made["key"] + made["one"]).encode())
    assert found == [binary(made["one"])]
    assert problems == [
        "holds a private key, which is not used here: take it out, programs need the certificate alone"
    ]
    assert parse(made["key"].encode()) == ([], problems)


@needs_openssl
def test_what_is_no_certificate_is_named_with_its_place_and_the_rest_is_used(made: dict[str, str]) -> None:
    """One bad entry in a bundle, and OpenSSL refuses all of it: so it must not get there."""
    lines = made["two"].splitlines()
    cut = "\n".join([*lines[:3], lines[-1]])
    not_one = f"-----BEGIN CERTIFICATE-----\n{base64.b64encode(b'no certificate').decode()}\n-----END CERTIFICATE-----"
    for damaged in (cut, not_one, "-----BEGIN CERTIFICATE-----\n&&&\n-----END CERTIFICATE-----"):
        found, problems = parse(f"{made['one']}{damaged}\n".encode())
        assert found == [binary(made["one"])]
        assert problems == ["is damaged: number 2 of 2 in it is no certificate; copy it again"]
    without_an_end = "\n".join(lines[:4])
    assert parse(f"{without_an_end}\n{made['one']}".encode()) == (
        [binary(made["one"])],
        ["is damaged: 1 of what begins as a certificate in it has no end; copy it again"],
    )
    assert parse(cut.encode())[1] == ["is damaged: what it holds is no certificate; copy it again"]


@needs_openssl
def test_utf_16_as_windows_writes_it_is_read(made: dict[str, str]) -> None:
    assert parse(made["one"].encode("utf-16"))[0] == [binary(made["one"])]


@needs_openssl
def test_binary_form_is_named_with_the_command_that_converts_it(made: dict[str, str]) -> None:
    assert parse(binary(made["one"])) == (
        [],
        ["is in binary form (DER). Convert it: openssl x509 -inform der -in FILE -out FILE.crt"],
    )


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"hello\n", "holds no certificate in text form (PEM): there is no line -----BEGIN CERTIFICATE-----"),
        (
            b"\xff\xfeh",
            "holds no certificate in text form (PEM): there is no line -----BEGIN CERTIFICATE-----",
        ),
        (b"x" * (LARGEST + 1), "has more than 8 MiB: no list of certificates is so long"),
    ],
    ids=["empty", "blank", "another text", "half a letter of UTF-16", "too large"],
)
def test_what_holds_none_says_so(raw: bytes, says: str) -> None:
    assert parse(raw) == ([], [says])


@needs_openssl
def test_text_is_made_as_openssl_makes_it(made: dict[str, str]) -> None:
    assert pem(binary(made["one"])) == made["one"]


# ---- what is mounted ----
def test_nothing_mounted_is_nothing_to_do(image: Path) -> None:
    assert read() == Trust()
    assert variables(read(), RUN, {}) == {}


@needs_openssl
def test_folder_with_its_subfolders_and_secret_are_read_and_the_broken_named(
    image: Path, made: dict[str, str]
) -> None:
    folder = paths.CERTIFICATES
    (folder / "company").mkdir()
    (folder / "b.crt").write_text(made["two"])
    (folder / "company/a.pem").write_text(made["one"])
    (folder / "again.cer").write_text(made["one"])
    (folder / "readme.txt").write_text("not looked at")
    (folder / "empty.crt").touch()
    os.mkfifo(folder / "pipe.pem")
    (folder / "gone.crt").symlink_to(folder / "nowhere")
    paths.CA_SECRET.parent.mkdir()
    paths.CA_SECRET.write_text(made["old"])
    trust = read()
    assert set(trust.certificates) == {binary(made[name]) for name in ("one", "two", "old")}
    assert len(trust.certificates) == 3
    assert trust.places == (str(folder), str(paths.CA_SECRET))
    assert set(trust.problems) == {
        f"{folder}/empty.crt is empty",
        f"{folder}/pipe.pem cannot be read (is not a file)",
        f"{folder}/gone.crt cannot be read (No such file or directory)",
    }
    assert trust.said == (
        f"3 from {folder} and {paths.CA_SECRET}, for pip, uv, curl, git, requests, httpx, node"
    )


@needs_openssl
def test_the_bundle_is_the_systems_and_what_it_lacks(image: Path, made: dict[str, str]) -> None:
    """Beginning with the system's own text, byte for byte, also one without an end of line and with odd letters."""
    system = f"# Autoridad de Certificaci\xf3n\n{made['old']}".rstrip("\n").encode("latin-1")
    paths.CA_SYSTEM.write_bytes(system)
    (paths.CERTIFICATES / "own.crt").write_text(made["one"] + made["old"])
    trust = read()
    assert trust.all == system + b"\n" + MARK.encode() + made["one"].encode()
    assert trust.extra == (made["one"] + made["old"]).encode()


# ---- where it is put ----
@needs_root
@needs_openssl
def test_written_beside_and_into_the_systems_file_and_taken_out_again(
    image: Path, made: dict[str, str]
) -> None:
    run = paths.RUN_CANDIDATES[0]
    system = paths.CA_SYSTEM
    system.write_text(made["old"])
    (paths.CERTIFICATES / "own.crt").write_text(made["one"])
    for _ in range(2):  # a container is started many times
        trust = read()
        write(trust, run, is_root=True)
        assert (run / ALL).read_text() == f"{made['old']}{MARK}{made['one']}"
        assert (run / EXTRA).read_text() == made["one"]
        assert system.read_text() == f"{made['old']}{MARK}{made['one']}"
    (paths.CERTIFICATES / "own.crt").write_text(made["two"])
    write(read(), run, is_root=True)
    assert system.read_text() == f"{made['old']}{MARK}{made['two']}", "the one before it is trusted no longer"
    (paths.CERTIFICATES / "own.crt").unlink()
    write(read(), run, is_root=True)
    assert system.read_text() == made["old"]


@needs_openssl
def test_without_root_the_systems_file_is_left_alone(image: Path, made: dict[str, str]) -> None:
    paths.CA_SYSTEM.write_text(made["old"])
    (paths.CERTIFICATES / "own.crt").write_text(made["one"])
    write(read(), paths.RUN_CANDIDATES[0], is_root=False)
    assert paths.CA_SYSTEM.read_text() == made["old"]


@needs_openssl
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_list_that_the_user_mounted_is_left_alone(
    image: Path, made: dict[str, str], monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    """-v /etc/ssl/certs:/etc/ssl/certs is the host's own list."""
    system = paths.CA_SYSTEM
    system.write_text(made["old"])
    point = (system, *system.parents)[depth]
    monkeypatch.setattr(certificates, "mounts", lambda: [Mount(Path("/"), "/"), Mount(point, "/etc")])
    (paths.CERTIFICATES / "own.crt").write_text(made["one"])
    write(read(), paths.RUN_CANDIDATES[0], is_root=True)
    assert system.read_text() == made["old"]


def test_a_system_without_a_list_is_no_reason_to_fail(image: Path) -> None:
    write(Trust(certificates=(b"x",)), paths.RUN_CANDIDATES[0], is_root=True)
    assert not paths.CA_SYSTEM.exists()


# ---- variables ----
def test_every_client_is_told_and_what_the_user_set_wins() -> None:
    trust = Trust(certificates=(b"x",))
    told = variables(trust, RUN, {"PIP_CERT": "/mine.pem", "SSL_CERT_FILE": ""})
    assert "PIP_CERT" not in told
    assert told["SSL_CERT_FILE"] == told["REQUESTS_CA_BUNDLE"] == "/run/torchtap/ca-certificates.pem"
    assert told["NODE_EXTRA_CA_CERTS"] == "/run/torchtap/ca-certificates-extra.pem"
    assert set(told) == {name for name, _, _ in VARIABLES} - {"PIP_CERT"}
