"""The certificate's state of a deployment's host name, with a real front door and a real ACME server."""

import asyncio
import os
from datetime import UTC, datetime

import pytest

from moorage.control.certificates import CertificateRules, Certificates
from moorage.control.host_names import HostNames
from moorage.control.store.host_names import HostNameStore
from moorage.embedded.front_tls import Https
from tests.control.houses import created, from_git
from tests.embedded.acme import AcmeServer
from tests.embedded.test_front_tls import ADDRESS, front_door, made_pair
from tests.platform.serving import make_folder
from tests.serving import free_port
from tests.waiting import until

pytest_plugins = "tests.control.fixtures"
GOOD, REFUSED = "good.certificates.test", "refused.certificates.test"


@pytest.fixture
def folder():
    with make_folder() as made:
        yield made


async def named(client, *names):
    """Create deployments with these host names."""
    made = [await created(client, from_git()) for _ in names]
    for one, name in zip(made, names, strict=True):
        patch = {"source_config": {"custom_url": f"https://{name}"}}
        shown = (await client.patch(f"/v2/deployments/{one['id']}", json=patch)).json()
        assert shown["host_name"] == {"name": name, "certificate": "pending", "message": None, "expires_at": None}
    return made


async def shown(client, made):
    found = (await client.get(f"/v2/deployments/{made['id']}")).json()
    return found["host_name"], [words for words in found["warnings"] if "custom_url" in words]


@pytest.mark.skipif(os.geteuid() != 0, reason="the ports 80 and 443 are root's")
async def test_a_name_shows_its_certificate_and_one_that_cannot_be_had_disturbs_no_other(client, control, folder):
    store = HostNameStore(control.rows.postgres)
    with AcmeServer(folder / "acme", dict.fromkeys((GOOD, REFUSED), ADDRESS), REFUSED).running() as acme:
        door = front_door(folder, Https(ADDRESS, 443, 80, acme_ca=acme.directory, acme_roots=acme.roots))
        try:
            door.start()
            good, refused = await named(client, GOOD, REFUSED)
            await HostNames(store, folder, frozenset()).look()
            look = Certificates(CertificateRules(ADDRESS, 443, folder / "front-door" / "log", asks=True), store).look
            # Two processes look at the same time.
            await asyncio.gather(look(), look())
            await until(lambda: _ended(client, look, good, refused), 60)
        finally:
            door.stop()
    found, warnings = await shown(client, good)
    assert (found["certificate"], found["message"], warnings) == ("issued", None, [])
    assert datetime.fromisoformat(found["expires_at"]) > datetime.now(UTC)
    found, [warning] = await shown(client, refused)
    assert (found["certificate"], "rejectedIdentifier" in found["message"], found["expires_at"]) == (
        "failed",
        True,
        None,
    )
    assert REFUSED in warning
    patch = {"source_config": {"custom_url": "https://another.certificates.test"}}
    renamed = (await client.patch(f"/v2/deployments/{refused['id']}", json=patch)).json()
    assert (renamed["host_name"]["certificate"], renamed["host_name"]["message"]) == ("pending", None)


async def _ended(client, look, *all_made):
    await look()
    states = {(await shown(client, made))[0]["certificate"] for made in all_made}
    return "pending" not in states


async def test_a_name_that_no_given_certificate_covers_says_so(client, control, folder):
    certificate, key = made_pair(folder / "pair", "*.given.test")
    https = Https(ADDRESS, free_port(), free_port(), certificate=certificate, key=key)
    store, door = HostNameStore(control.rows.postgres), front_door(folder, https)
    try:
        door.start()
        covered, bare, plain = await named(client, "chat.given.test", "chat.elsewhere.test", "chat.plain.test")
        patch = {"source_config": {"custom_url": "http://chat.plain.test"}}
        await client.patch(f"/v2/deployments/{plain['id']}", json=patch)
        look = Certificates(
            CertificateRules(ADDRESS, https.port, folder / "front-door" / "log", asks=False), store
        ).look
        await until(lambda: _ended(client, look, covered, bare), 60)
    finally:
        door.stop()
    assert (await shown(client, covered))[0]["certificate"] == "issued"
    found, warnings = await shown(client, plain)
    assert (found["certificate"], found["message"], warnings) == ("none", None, []), "nobody asked for HTTPS"
    found, [_] = await shown(client, bare)
    assert (found["certificate"], "MOORAGE_ACME_CA" in found["message"]) == ("failed", True)
