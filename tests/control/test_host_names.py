"""Host names of deployments: refused names, unique names, and how the front door learns of them."""

import asyncio
import socket
from pathlib import Path

import pytest

from moorage.control.host_names import HostNames
from moorage.control.records.host_names import HostName, ServedName
from moorage.control.runtimes.front_link import HostLinks
from moorage.control.store.host_names import HostNameStore
from moorage.kernel.ids import uuid7
from moorage.settings.platform import PlatformSettings
from moorage.wiring.control import control_options
from tests.control.houses import created, from_git

pytest_plugins = "tests.control.fixtures"


def unique_name():
    return f"h{uuid7().hex[-12:]}.example.com"


async def _set(client, made, url):
    return await client.patch(f"/v2/deployments/{made['id']}", json={"source_config": {"custom_url": url}})


async def test_a_deployment_gets_a_host_name_keeps_it_and_gives_it_back(client):
    made, name = await created(client, from_git()), unique_name()
    own = made["source_config"]["custom_url"]
    answer = await _set(client, made, f"https://{name.upper()}/")
    assert (answer.status_code, answer.json()["source_config"]["custom_url"]) == (200, f"https://{name}")
    assert answer.json()["latest_revision_id"] == made["latest_revision_id"], "it needs no revision"
    assert not [words for words in answer.json()["warnings"] if "custom_url" in words]
    for patch in ({"display_name": "x"}, {"source_config": {}}, {"source_config": {"custom_url": f"https://{name}"}}):
        kept = await client.patch(f"/v2/deployments/{made['id']}", json=patch)
        assert kept.json()["source_config"]["custom_url"] == f"https://{name}", patch
    assert (await _set(client, made, None)).json()["source_config"]["custom_url"] == own
    body = from_git()
    body["source_config"]["custom_url"] = f"http://{name}:8080"
    another = await created(client, body)
    assert another["source_config"]["custom_url"] == f"http://{name}:8080"
    assert (await _set(client, another, own.replace(made["name"], another["name"]))).status_code == 200
    assert (await _set(client, made, f"https://{name}")).status_code == 200, "the platform's own address gave it back"


@pytest.mark.parametrize(
    "url, reason",
    [
        ("https://127.0.0.1", "IP address"),
        ("https://[::1]:8080", "IP address"),
        ("https://2130706433", "IP address"),
        ("https://chat.0x7f.1", "IP address"),
        ("https://*.example.com", "wildcard"),
        ("https://localhost", "public host name"),
        ("https://chat.localhost", "public host name"),
        ("https://printer.local", "public host name"),
        ("https://chat", "public host name"),
        ("https://-chat.example.com", "public host name"),
        ("https://chat..example.com", "public host name"),
        ("https://chat.example.com.", "public host name"),
        ("https://chat_1.example.com", "public host name"),
        ("https://chat.example.0x7f", "public host name"),
        ("https://../../etc.example.com", "has no path"),
        ("https://..%2f.example.com", "public host name"),
        ("https://chät.example.com", "ASCII"),
        (f"https://{'a' * 63}.{'b' * 63}.example.com", "90 characters"),
        ("https://chat.example.com/agent", "has no path"),
        ("https://chat.example.com?x=1", "has no path"),
        ("https://chat.example.com#x", "has no path"),
        ("https://MOORAGE.test", "platform itself"),
        ("http://moorage.test:9999/", "platform itself"),
        ("https://inside.example.com", "platform itself"),
    ],
)
async def test_a_name_that_cannot_be_is_refused_in_words(client, refused, url, reason):
    answer = await _set(client, refused, url)
    assert (answer.status_code, reason in answer.json()["detail"]) == (400, True), answer.text
    assert (await client.get(f"/v2/deployments/{refused['id']}")).json() == refused


@pytest.fixture
async def refused(client):
    return await created(client, from_git())


@pytest.mark.parametrize("url", ["https://user:secret@chat.example.com", "ftp://chat.example.com", "chat.example.com"])
async def test_what_is_no_web_address_has_the_wrong_shape(client, refused, url):
    assert (await _set(client, refused, url)).status_code == 422


async def test_a_name_has_one_deployment_of_all_workspaces_and_nobody_learns_whose(client, control):
    name, mine = unique_name(), await created(client, from_git())
    assert (await _set(client, mine, f"https://{name}")).status_code == 200
    theirs = await control.house.make_workspace()
    async with control.client(theirs["api_key"]) as other:
        made = await created(other, from_git())
        body = from_git()
        body["source_config"]["custom_url"] = f"https://{name}"
        for answer in (await _set(other, made, f"http://{name}:81"), await other.post("/v2/deployments", json=body)):
            assert (answer.status_code, f"host name {name} is taken" in answer.json()["detail"]) == (409, True)
            assert mine["name"] not in answer.text
            assert control.workspace_id not in answer.text
        assert (await other.get(f"/v2/deployments/{made['id']}")).json() == made
        assert (await client.delete(f"/v2/deployments/{mine['id']}")).status_code == 204
        assert (await _set(other, made, f"https://{name}")).status_code == 200


async def test_of_many_that_ask_at_once_one_gets_the_name(client):
    name = unique_name()
    all_made = [await created(client, from_git()) for _ in range(6)]
    answers = await asyncio.gather(*(_set(client, made, f"https://{name}") for made in all_made))
    assert sorted(answer.status_code for answer in answers) == [200, *[409] * 5]


async def test_the_front_door_is_told_again_and_again(client, control, tmp_path):
    front, name = _front(tmp_path), unique_name()
    made = await created(client, from_git())
    await _set(client, made, f"https://{name}")
    store = HostNameStore(control.rows.postgres)
    hosts = HostNames(store, tmp_path, frozenset())
    for _ in range(2):
        await hosts.look()
        assert str((front / f"l-{name}").readlink()) == f"d-{made['name']}.sock"
        assert (front / f"h-{name}").stat().st_mode & 0o777 == 0o644
    await HostNames(store, tmp_path, {name}).look()
    assert not (front / f"h-{name}").exists(), "the platform has got that name meanwhile"
    await hosts.look()
    await client.delete(f"/v2/deployments/{made['id']}")
    await hosts.look()
    assert not (front / f"h-{name}").exists()


def test_a_name_that_goes_loses_its_mark_before_its_link(tmp_path):
    front, links = _front(tmp_path), HostLinks(tmp_path)
    (front / "d-one.sock").touch()
    links.serve(
        [ServedName("a.example.com", "one", has_https=True), ServedName("b.example.com", "one", has_https=True)]
    )
    links.serve([ServedName("a.example.com", "two", has_https=True)])
    kept = {"d-one.sock", "h-a.example.com", "s-a.example.com", "l-a.example.com"}
    assert {file.name for file in front.iterdir()} == kept | {"l-b.example.com"}
    assert str((front / "l-a.example.com").readlink()) == "d-two.sock"
    links.serve([ServedName("a.example.com", "two", has_https=False)])
    assert {file.name for file in front.iterdir()} == kept - {"s-a.example.com"}


async def test_a_name_leads_to_https_once_its_certificate_was_seen_and_not_at_a_port_of_its_own(
    control, client, tmp_path
):
    front, store = _front(tmp_path), HostNameStore(control.rows.postgres)
    hosts = HostNames(store, tmp_path, frozenset())
    names = {}
    for kind, url in (("https", "https://{}"), ("port", "https://{}:8443"), ("http", "http://{}")):
        names[kind] = f"{kind}-{uuid7().hex[-12:]}.example.com"
        config = {"repo_url": "https://github.com/someone/agent", "custom_url": url.format(names[kind])}
        await created(client, from_git(source_config=config))
    await hosts.look()
    assert not list(front.glob("s-*")), "no certificate was seen yet"
    for name in names.values():
        await store.note(HostName(name=name, certificate="issued", message=None, expires_at=None), 60)
    await hosts.look()
    assert [file.name for file in front.glob("s-*")] == [f"s-{names['https']}"]
    await store.note(HostName(name=names["https"], certificate="failed", message="no", expires_at=None), 60)
    await hosts.look()
    assert not list(front.glob("s-*"))


def _front(home: Path) -> Path:
    front = home / "front-door" / "front"
    front.mkdir(parents=True, exist_ok=True)
    return front


def test_every_name_that_leads_to_the_platform_is_its_own(tmp_path):
    given = {
        "MOORAGE_PUBLIC_URL": "https://Agents.example.com",
        "MOORAGE_PLATFORM_NAMES": "inside.example.com, Two.example.com",
    }
    names = control_options(PlatformSettings(**given), tmp_path).platform_names
    wanted = {"agents.example.com", "eu.agents.example.com", "inside.example.com", "two.example.com", "127.0.0.1"}
    assert names == wanted | {socket.gethostname().lower()}
