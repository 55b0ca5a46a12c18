"""A deployment that is deleted together with its project, through a real platform."""

from __future__ import annotations

import httpx

from tests.waiting import wait_until

pytest_plugins = "tests.platform.fixtures"

ORDER = {
    "name": "never-traced",
    "source": "internal_source",
    "source_config": {},
    "source_revision_config": {},
    "secrets": [],
}


def test_a_deployment_that_nobody_traced_is_removed_with_its_project(api: httpx.Client) -> None:
    made = api.post("/v2/deployments", json=ORDER).raise_for_status().json()
    deletion = api.delete(f"/v2/deployments/{made['id']}", params={"delete_tracing_project": "true"})
    assert deletion.status_code == 204
    # The deployment keeps its name until the removal has ended, since the project of that name is removed too.
    again = wait_until(
        lambda: made_again if (made_again := api.post("/v2/deployments", json=ORDER)).is_success else None
    )
    assert api.delete(f"/v2/deployments/{again.json()['id']}").status_code == 204
