"""The official SDK, unmodified, as a caller with the right key, the wrong key, and the key of another workspace."""

from __future__ import annotations

from uuid import uuid4

import pytest
from langsmith import Client
from langsmith.utils import LangSmithAuthError, LangSmithUserError

from moorage.accounts.records import new_api_key

pytest_plugins = "tests.accounts.fixtures"


def client_of(served, **more) -> Client:
    return Client(api_url=f"{served.url}/api/v1", info={}, auto_batch_tracing=False, **more)


def test_it_learns_where_it_is(served):
    settings = client_of(served, api_key=served.first.api_key)._get_settings()
    assert (settings.id, settings.display_name) == (str(served.first.workspace_id), "Default")


def test_it_may_name_its_workspace(served):
    workspace_id = str(served.first.workspace_id)
    settings = client_of(served, api_key=served.first.api_key, workspace_id=workspace_id)._get_settings()
    assert settings.id == workspace_id


def test_a_wrong_key_is_an_authentication_error(served):
    with pytest.raises(LangSmithAuthError, match="Invalid API key"):
        client_of(served, api_key=new_api_key())._get_settings()


def test_another_workspace_makes_it_ask_for_one(served):
    with pytest.raises(LangSmithUserError, match="requires workspace specification"):
        client_of(served, api_key=served.first.api_key, workspace_id=str(uuid4()))._get_settings()
