"""Deliveries of webhooks: addresses that are checked once more, attempts, certificates, and the sweep."""

from __future__ import annotations

import ssl
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage.agents.langgraph_json import WebhookRules
from moorage.agents.store.webhooks import WebhookStore
from moorage.agents.webhooks import Deliveries, WebhookPolicy
from moorage.kernel.postgres import Postgres
from tests.agents.receivers import Names, Receiver, receiving

pytest_plugins = "tests.kernel.fixtures"


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


INSERT = """
INSERT INTO webhook_deliveries (run_id, url, run, attempt) VALUES (gen_random_uuid(), %s, '{"run_id": "r"}', %s)
"""
LOCAL = WebhookRules(require_https=False, disable_loopback=False)


async def attempt(postgres: Postgres, policy: WebhookPolicy, url: str, *, after: int = 0) -> str:
    """Make one attempt at a delivery, and return its status."""
    store = WebhookStore(postgres)
    await postgres.execute("TRUNCATE webhook_deliveries")
    await postgres.execute(INSERT, (url, after))
    (row,) = await store.claim("tester", 10, 60)
    await Deliveries(store, policy, {}).execute(row)
    left = await postgres.fetch_one("SELECT * FROM webhook_deliveries")
    assert left is not None
    assert (left["ended_at"] is None) == (left["status"] == "pending")
    assert (left["worker"], left["lease_until"]) == (None, None)
    return str(left["status"])


async def test_a_name_that_leads_elsewhere_at_the_delivery_is_not_followed(agents_postgres, receiver):
    policy = WebhookPolicy(WebhookRules(require_https=False), Names("93.184.215.14", "127.0.0.1"))
    url = f"http://hooks.example.com:{receiver.port}/rebound"
    await policy.check(url)
    assert await attempt(agents_postgres, policy, url) == "pending"
    assert not [told for told in receiver.told if told.path == "/rebound"]


async def test_the_connection_goes_to_the_address_that_was_checked(agents_postgres, receiver):
    """The name is resolved once, and by the check only: it does not exist elsewhere."""
    names = Names("127.0.0.1")
    url = f"http://me:word@hooks.example.invalid:{receiver.port}/pinned?x=1#part"
    assert await attempt(agents_postgres, WebhookPolicy(LOCAL, names), url) == "delivered"
    (told,) = receiver.hears("/pinned?x=1")
    assert told.headers["Host"] == f"hooks.example.invalid:{receiver.port}"
    assert told.headers["Authorization"] == f"Basic {b64encode(b'me:word').decode()}"
    assert names.places == []


async def test_the_next_address_is_tried_when_one_does_not_answer(agents_postgres, receiver):
    policy = WebhookPolicy(LOCAL, Names("127.0.0.2 127.0.0.1"))
    assert await attempt(agents_postgres, policy, receiver.url("/second")) == "delivered"


async def test_after_its_last_attempt_a_delivery_is_given_up(agents_postgres, receiver):
    receiver.answers["/never"] = [500] * 5
    policy = WebhookPolicy(LOCAL, Names(*["127.0.0.1"] * 5))
    ends = [await attempt(agents_postgres, policy, receiver.url("/never"), after=before) for before in range(5)]
    assert ends == [*["pending"] * 4, "failed"]


@pytest.fixture
def own_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """Make a certificate of a server called hooks.example. SSL_CERT_FILE makes its authority known."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    names = ["-subj", "/CN=hooks.example", "-addext", "subjectAltName=DNS:hooks.example"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    return tls


@pytest.mark.parametrize("host, status", [("hooks.example", "delivered"), ("other.example", "pending")])
async def test_the_certificate_is_that_of_the_name(agents_postgres, own_tls, host, status):
    policy = WebhookPolicy(WebhookRules(disable_loopback=False), Names("127.0.0.1"))
    with receiving(own_tls) as secure:
        assert await attempt(agents_postgres, policy, f"https://{host}:{secure.port}/tls") == status
    assert len(secure.told) == (status == "delivered")


async def test_a_delivery_is_swept_a_day_after_its_end(agents_postgres):
    deliveries = Deliveries(WebhookStore(agents_postgres), WebhookPolicy(LOCAL), {})
    await agents_postgres.execute("TRUNCATE webhook_deliveries")
    await agents_postgres.execute(INSERT, ("http://127.0.0.1/", 0))
    end = "UPDATE webhook_deliveries SET status = 'delivered', ended_at = now() - %s * interval '1 hour'"
    for hours, left in ((23, 1), (25, 0)):
        await agents_postgres.execute(end, (hours,))
        await deliveries.reap()
        assert len(await agents_postgres.fetch("SELECT FROM webhook_deliveries")) == left


async def test_only_the_holder_of_a_delivery_moves_it(agents_postgres):
    store = WebhookStore(agents_postgres)
    await agents_postgres.execute("TRUNCATE webhook_deliveries")
    await agents_postgres.execute(INSERT, ("http://127.0.0.1/", 0))
    (old,) = await store.claim("old", 1, -1)
    assert await store.claim("other", 1, 60) == []
    assert await store.reap(5) == 1
    (new,) = await store.claim("new", 1, 60)
    assert await store.beat([old.lease], 60) == []
    await store.hand_back([old.lease])
    assert await store.beat([new.lease], 60) == [new.lease.key]
    await store.hand_back([new.lease])
    (again,) = await store.claim("new", 1, 60)
    assert again.lease.attempt == new.lease.attempt
