"""HTTPS at the front door, on the real Caddy: certificates of a real ACME server, and given ones."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.embedded.acme import AcmeServer
from tests.embedded.test_caddy import serving
from tests.platform.serving import make_folder
from tests.serving import free_port
from tests.waiting import until

from moorage.embedded.caddy import EmbeddedCaddy
from moorage.embedded.front_door import BodyLimits
from moorage.embedded.front_tls import Https, last_failure
from moorage.kernel.errors import EngineError
from moorage.kernel.tls import shown_until
from moorage.settings.platform import PlatformSettings

# ACME checks names at the ports 80 and 443, which are free at an address of this test's own.
ADDRESS = f"127.77.{os.getpid() // 250 % 250}.{os.getpid() % 250 + 1}"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with make_folder() as made:
        yield made


@pytest.fixture(scope="module")
def acme(folder: Path) -> Iterator[AcmeServer]:
    names = ("chat.example.test", "other.example.test", "refused.example.test", "platform.example.test")
    with AcmeServer(folder / "acme", dict.fromkeys(names, ADDRESS), "refused.example.test").running() as server:
        yield server


def front_door(home: Path, https: Https) -> EmbeddedCaddy:
    return EmbeddedCaddy(home, "x", BodyLimits(), lambda: [listening(https.http_port), listening(https.port)], https)


def listening(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((ADDRESS, port))
    made.listen(128)
    return made


def serve_at(home: Path, name: str, socket_file: Path) -> None:
    front = home / "front-door" / "front"
    (front / f"l-{name}").symlink_to(socket_file)
    (front / f"h-{name}").touch()
    (front / f"h-{name}").chmod(0o644)


def get(name: str, port: int, roots: Path, path: str = "/ok") -> httpx.Response:
    """Send a request as a client that resolves the name and trusts the roots."""
    url, extensions = f"https://{ADDRESS}:{port}{path}", {"sni_hostname": name}
    with httpx.Client(verify=ssl.create_default_context(cafile=str(roots)), timeout=20) as client:
        return client.get(url, headers={"Host": name}, extensions=extensions)


@pytest.mark.skipif(os.geteuid() != 0, reason="the ports 80 and 443 are root's")
async def test_names_of_deployments_and_of_the_platform_get_certificates_and_no_others(folder, acme):
    home = folder / "acme-home"
    https = Https(ADDRESS, 443, 80, ("platform.example.test",), acme_ca=acme.directory, acme_roots=acme.roots)
    door = front_door(home, https)
    try:
        door.start()
        with serving("chat", folder / "chat.sock"), serving("platform", door.platform_socket):
            serve_at(home, "chat.example.test", folder / "chat.sock")
            told = get("chat.example.test", 443, acme.roots).json()
            assert (told["by"], told["headers"]["X-Forwarded-Proto"]) == ("chat", "https")
            assert get("platform.example.test", 443, acme.roots).json()["by"] == "platform"
            for nobodys in ("other.example.test", "127.0.0.1"):
                assert await shown_until(ADDRESS, 443, nobodys, 5) is None
            # A certificate that cannot be obtained disturbs no other.
            serve_at(home, "refused.example.test", folder / "chat.sock")
            assert await shown_until(ADDRESS, 443, "refused.example.test", 1) is None
            log = home / "front-door" / "log"
            await until(lambda: "rejectedIdentifier" in (last_failure(log, "refused.example.test") or ""))
            assert last_failure(log, "chat.example.test") is None
            assert get("chat.example.test", 443, acme.roots).json()["by"] == "chat"
            # Certificates are kept after an end of the front door, even without the ACME server.
            os.kill(door._pids()[0], 9)
            await until(lambda: not door._pids())
            door.start()
            seen = await shown_until(ADDRESS, 443, "chat.example.test", 5)
            assert seen is not None
            assert seen > datetime.now(UTC)
    finally:
        door.stop()


def made_pair(folder: Path, *names: str) -> tuple[Path, Path]:
    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")]),
    )
    now, names_in_it = datetime.now(UTC), x509.SubjectAlternativeName([x509.DNSName(each) for each in names])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=9))
        .add_extension(names_in_it, critical=False)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(exist_ok=True)
    certificate, key_file = folder / "given.crt", folder / "given.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    key_file.write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
    key_file.chmod(0o600)
    return certificate, key_file


def test_a_page_that_is_opened_by_plain_http_leads_to_https_and_programs_are_answered(folder):
    certificate, key = made_pair(folder / "pair", "platform.example.test")
    home, ports, name = folder / "home", (free_port(), free_port()), "platform.example.test"
    https = Https(ADDRESS, *ports, (name,), f"https://{name}:8443", certificate=certificate, key=key)
    door = front_door(home, https)
    browser = {"Host": f"{name}:80", "Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    try:
        door.start()
        with serving("platform", door.platform_socket), httpx.Client(base_url=f"http://{ADDRESS}:{ports[1]}") as client:
            told = client.get("/o/x?y=1", headers=browser)
            assert (told.status_code, told.headers["location"]) == (308, f"https://{name}:8443/o/x?y=1")
            for headers in (
                {"Host": name, "Accept": "*/*"},
                {"Accept": browser["Accept"]},
                browser | {"X-Forwarded-Proto": "https"},
                browser | {"Host": "platform.example.test.evil.test"},
            ):
                assert client.get("/ok", headers=headers).status_code == 200, headers
            assert client.post("/ok", headers=browser).status_code == 200
            own = browser | {"Host": "chat.example.test:80"}
            assert client.get("/c?y=1", headers=own).status_code == 200
            (home / "front-door" / "front" / "s-chat.example.test").touch()
            told = client.get("/c?y=1", headers=own)
            assert (told.status_code, told.headers["location"]) == (308, "https://chat.example.test/c?y=1")
            assert client.get("/c", headers=own | {"Accept": "*/*"}).status_code == 200
            assert client.get("//evil.test", headers=own).headers["location"].startswith("https://chat.example.test/")
            for wrong in (
                "chat.example.test/../s-chat.example.test",
                "../front/s-chat.example.test",
                "s-chat.example.test",
            ):
                assert client.get("/c", headers=own | {"Host": wrong}).status_code in {200, 400}, wrong
            assert client.get("//evil.test/..", headers=browser).headers["location"].startswith(f"https://{name}:8443/")
    finally:
        door.stop()


async def test_a_certificate_that_is_given_serves_the_names_in_it(folder):
    certificate, key = made_pair(folder / "given", "*.example.test")
    home, ports = folder / "given-home", (free_port(), free_port())
    https = Https(ADDRESS, ports[0], ports[1], certificate=certificate, key=key)
    door = front_door(home, https)
    try:
        door.start()
        with serving("chat", folder / "given.sock"):
            serve_at(home, "chat.example.test", folder / "given.sock")
            assert get("chat.example.test", https.port, certificate).json()["by"] == "chat"
            assert await shown_until(ADDRESS, https.port, "a.chat.example.test", 5) is None
            for file in (home / "front-door" / "tls").iterdir():
                assert file.stat().st_mode & 0o777 == (0o640 if os.geteuid() == 0 else 0o600)
                assert file.stat().st_uid == os.geteuid()
            assert (home / "front-door" / "tls").stat().st_mode & 0o007 == 0
            before = door._pids()
            front_door(home, https).start()
            assert door._pids() == before, "the next owner adopts it"
            made_pair(folder / "given", "*.example.test", "example.org")
            next_owner = front_door(home, https)
            door._close_listening()  # as the death of the previous owner does
            next_owner.start()
            assert door._pids() != before, "another certificate is served from the next start on"
            assert await shown_until(ADDRESS, https.port, "example.org", 5) is not None
            assert len(list((home / "front-door" / "tls").iterdir())) == 2
            next_owner._close_listening()
    finally:
        door.stop()


def test_a_pair_that_does_not_fit_is_told_before_anything_runs(folder):
    certificate, _ = made_pair(folder / "one", "a.example.test")
    _, key = made_pair(folder / "two", "a.example.test")
    for wrong in (key, folder / "nowhere.key", certificate):
        with pytest.raises(EngineError, match=r"do not make a pair|cannot be read"):
            front_door(folder / "never", Https(ADDRESS, 1, 2, certificate=certificate, key=wrong))
    assert not (folder / "never").exists()


@pytest.mark.parametrize(
    "given, named",
    [
        ({"MOORAGE_HTTPS_PORT": 8443}, "needs MOORAGE_ACME_CA"),
        ({"MOORAGE_HTTPS_PORT": 8080, "MOORAGE_ACME_CA": "https://ca.example.com/dir"}, "are two ports"),
        ({"MOORAGE_ACME_CA": "https://ca.example.com/dir"}, "without MOORAGE_HTTPS_PORT"),
        ({"MOORAGE_TLS_CERTIFICATE": "/a.crt", "MOORAGE_TLS_KEY": "/a.key"}, "without MOORAGE_HTTPS_PORT"),
        ({"MOORAGE_HTTPS_PORT": 8443, "MOORAGE_TLS_CERTIFICATE": "/a.crt"}, "are set together"),
        (
            {
                "MOORAGE_HTTPS_PORT": 8443,
                "MOORAGE_TLS_CERTIFICATE": "/a",
                "MOORAGE_TLS_KEY": "/b",
                "MOORAGE_ACME_EMAIL": "a@b",
            },
            "do nothing",
        ),
        ({"MOORAGE_HTTPS_PORT": 8443, "MOORAGE_ACME_CA": "file:///etc/passwd"}, "URL scheme"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(given, named):
    with pytest.raises(ValueError, match=named):
        PlatformSettings(**given)
