"""`moorage worker`: it shares the work of a platform, and names missing settings."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from moorage.exports.destinations import DestinationRules, Destinations
from moorage.exports.records.destinations import SEALED_CREDENTIALS, DestinationType
from moorage.exports.store.destinations import DestinationStore, StoredDestination
from moorage.kernel.crypto import MasterKeys
from moorage.kernel.errors import StartupError
from moorage.kernel.ids import uuid7
from tests.exports.seaweed import ROLE, TRUSTED
from tests.platform.serving import environment, moorage

pytest_plugins = ["tests.platform.fixtures", "tests.exports.fixtures"]


@contextmanager
def working(home, **settings):
    """Start a `moorage worker`, and wait until it says that it is at work."""
    command = [sys.executable, "-u", "-m", "moorage", "worker", "--home", str(home)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(**settings)
    ) as process:
        try:
            assert any("is at work" in line for line in process.stdout), "it ended"
            yield process
        finally:
            process.kill()


def test_what_is_missing_is_named(platform_folder):
    code, _, err = moorage("worker", "--home", platform_folder / "none")
    assert code == 1
    assert all(name in err for name in ("DATABASE_URI", "CLICKHOUSE_URL", "MOORAGE_SECRET_KEY"))
    given = {"DATABASE_URI": "postgresql://localhost:1/none", "MOORAGE_SECRET_KEY": "A" * 43}
    _, _, err = moorage("worker", "--home", platform_folder / "none", **given)
    assert "CLICKHOUSE_URL not set" in err
    assert not (platform_folder / "none").exists(), "it starts no engines of its own"


def test_it_joins_the_platform_of_a_home_and_writes_its_exports(platform, api):
    project = api.post("/api/v1/sessions", json={"name": "worked"}).json()["id"]
    destination = {"destination_type": "local", "display_name": "d", "config": {"bucket_name": "bucket"}}
    destination_id = api.post("/api/v1/bulk-exports/destinations", json=destination).json()["id"]
    order = {"bulk_export_destination_id": destination_id, "session_id": project}
    order |= {"start_time": "2026-01-01", "end_time": "2026-09-01"}
    with working(platform.home) as worker:
        export_id = api.post("/api/v1/bulk-exports", json=order).json()["id"]
        deadline = time.monotonic() + 90
        while (export := api.get(f"/api/v1/bulk-exports/{export_id}").json())["status"] in {"Created", "Running"}:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert export["status"] == "Completed"
        worker.terminate()
        printed = worker.stdout.read()
        assert worker.wait(30) == 0
    # This many days, so that some are left when the worker looks for work the next time.
    assert f"export_id={export_id}" in printed
    assert "export run complete" in printed


async def _checked(postgres, keys, **rules):
    rules = {"allow_private_endpoints": True, "allow_environment_credentials": False, "local_root": None, **rules}
    await Destinations(DestinationStore(postgres), keys, DestinationRules(**rules)).check_here()


async def test_what_does_not_fit_the_destinations_is_named(platform_postgres, tmp_path):
    await platform_postgres.execute("DELETE FROM export_destinations")
    keys = MasterKeys([os.urandom(32)])
    store = DestinationStore(platform_postgres)

    async def insert(kind, credentials, **config):
        destination = StoredDestination(uuid7(), kind, config, credentials, None)
        await store.insert(destination, uuid7(), display_name="d", credentials_keys=[], permissions={}, actor="test")

    await insert(DestinationType.S3, keys.seal(b"{}", SEALED_CREDENTIALS.place(uuid7())))
    await _checked(platform_postgres, keys)
    with pytest.raises(StartupError, match="MOORAGE_SECRET_KEY"):
        await _checked(platform_postgres, MasterKeys([os.urandom(32)]))
    await insert(DestinationType.LOCAL, None)
    with pytest.raises(StartupError, match="MOORAGE_EXPORT_DIRECTORY"):
        await _checked(platform_postgres, keys)
    await insert(DestinationType.S3, None)
    with pytest.raises(StartupError, match="MOORAGE_EXPORT_ENVIRONMENT_CREDENTIALS"):
        await _checked(platform_postgres, keys, local_root=tmp_path)
    allowed = {"local_root": tmp_path, "allow_environment_credentials": True}
    await _checked(platform_postgres, keys, **allowed)
    await insert(DestinationType.S3, None, aws_role_arn=ROLE)
    await insert(DestinationType.S3, None)
    with pytest.raises(StartupError, match="AWS_ACCESS_KEY_ID"):
        await _checked(platform_postgres, keys, **allowed)
    await _checked(platform_postgres, keys, **allowed, lent=await TRUSTED.lend())
