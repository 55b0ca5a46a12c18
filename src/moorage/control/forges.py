"""APIs of forges: the repositories and branches that a token reaches.

Sources: docs.github.com/rest (repos, branches), docs.gitlab.com/api (projects, branches), docs.gitea.com/api
(user/repos, branches; Forgejo serves the same API).
"""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote
from uuid import UUID

from moorage.control.checkouts import Credential
from moorage.control.records.integrations import Branch, CommitStatus, ForgeKind, GithubRepository, OpenForge
from moorage.kernel.encoding import decode, encode
from moorage.kernel.errors import BadRequestError, NotFoundError, RemoteError
from moorage.kernel.guarded_http import GuardedHttp
from moorage.kernel.pinned_http import Answer

_NAMES: dict[ForgeKind, str] = {"github": "GitHub", "gitlab": "GitLab", "gitea": "Gitea"}
# A page of GitHub's repositories has some 6 KB for each repository: far below the limit of a response.
_PAGE = 50
_PAGES_MAX = 40
# Each forge takes the token as the password, with a user name that marks it as a token.
_GIT_USERS: dict[ForgeKind, str] = {"github": "x-access-token", "gitlab": "oauth2", "gitea": "oauth2"}


def credential_of(forge: OpenForge) -> Credential:
    """Return the token in the form in which git sends it to the forge."""
    basic = base64.b64encode(f"{_GIT_USERS[forge.kind]}:{forge.token}".encode()).decode()
    return Credential(forge.base_url, f"Authorization: Basic {basic}")


class Forges:
    def __init__(self, http: GuardedHttp) -> None:
        self._http = http

    async def repositories(self, forge: OpenForge, integration_id: UUID) -> list[GithubRepository]:
        """List the repositories that the token reaches, at most 2000.

        Raises BadRequestError for a token that the forge refuses, RemoteError when the forge gives no valid answer.
        """
        path = "/installation/repositories" if forge.is_installation else _REPOSITORIES[forge.kind]
        found = await self._pages(forge, path)
        try:
            return [_repository(forge.kind, integration_id, row) for row in found]
        except (KeyError, TypeError, ValueError):
            raise _unsound(forge) from None

    async def branches(self, forge: OpenForge, repository: str) -> list[Branch]:
        """List the branches of a repository such as `owner/name`, at most 2000. Raises as `repositories` does, and
        NotFoundError.
        """
        found = await self._pages(forge, _branches_path(forge.kind, repository))
        try:
            return [Branch(name=row["name"], commit_sha=_sha_of(forge.kind, row["commit"])) for row in found]
        except (KeyError, TypeError):
            raise _unsound(forge) from None

    async def tell_status(self, forge: OpenForge, repository: str, status: CommitStatus) -> None:
        """Write the status of a commit; the forge shows the latest one of its context.

        Raises RemoteError for a failure that may be retried, BadRequestError or NotFoundError for a permanent one.
        """
        values = {"state": status.state, "target_url": status.target_url, "description": status.description}
        if forge.kind == "gitlab":
            values |= {"name": status.context, "state": "failed" if status.state == "failure" else status.state}
            path = f"/projects/{quote(repository, safe='')}/statuses/{status.commit_sha}"
        else:
            values |= {"context": status.context}
            path = f"/repos/{quote(repository)}/statuses/{status.commit_sha}"
        headers = {**headers_of(forge), "content-type": "application/json"}
        answer = await self._http.send("POST", f"{api_of(forge)}{path}", headers=headers, content=encode(values))
        # GitLab answers 400 if the commit already has this state.
        if answer.status in {400, 409, 422}:
            raise BadRequestError(f"{_NAMES[forge.kind]} does not take the status ({answer.status})")
        check(forge, answer)

    async def installation_token(self, forge: OpenForge, installation_id: int) -> str:
        """Return a token for the repositories of an installed GitHub app, valid for an hour. `forge` holds the app's
        JWT as its token.

        Raises BadRequestError when the app is unknown, not installed or suspended, RemoteError when the answer is not
        valid.
        """
        url = f"{api_of(forge)}/app/installations/{installation_id}/access_tokens"
        answer = await self._http.send("POST", url, headers=headers_of(forge))
        if answer.status in {401, 403, 404}:
            raise BadRequestError(
                f"GitHub refuses the app of the integration ({answer.status}): its id, the id of the installation or the "
                "private key is wrong, or the app is not installed there any more"
            )
        check(forge, answer)
        try:
            return str(decode(answer.content)["token"])
        except (ValueError, KeyError, TypeError):
            raise _unsound(forge) from None

    async def _pages(self, forge: OpenForge, path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        size = "limit" if forge.kind == "gitea" else "per_page"
        for page in range(1, _PAGES_MAX + 1):
            url = f"{api_of(forge)}{path}{'&' if '?' in path else '?'}{size}={_PAGE}&page={page}"
            rows = _rows(forge, await self._http.send("GET", url, headers=headers_of(forge)))
            found += rows
            if len(rows) < _PAGE:
                break
        return found


_REPOSITORIES: dict[ForgeKind, str] = {
    "github": "/user/repos",
    "gitlab": "/projects?membership=true&simple=true",
    "gitea": "/user/repos",
}


def _branches_path(kind: ForgeKind, repository: str) -> str:
    if kind == "gitlab":
        return f"/projects/{quote(repository, safe='')}/repository/branches"
    return f"/repos/{quote(repository)}/branches"


def api_of(forge: OpenForge) -> str:
    if forge.kind == "github":
        return "https://api.github.com" if forge.base_url == "https://github.com" else f"{forge.base_url}/api/v3"
    return forge.base_url + ("/api/v4" if forge.kind == "gitlab" else "/api/v1")


def headers_of(forge: OpenForge) -> dict[str, str]:
    if forge.kind == "github":
        return {
            "authorization": f"Bearer {forge.token}",
            "accept": "application/vnd.github+json",
            "x-github-api-version": "2022-11-28",
        }
    if forge.kind == "gitlab":
        return {"private-token": forge.token}
    return {"authorization": f"token {forge.token}"}


def _rows(forge: OpenForge, answer: Answer) -> list[dict[str, Any]]:
    """Return the rows of a page. Errors do not repeat the forge's text, since a stranger wrote it."""
    check(forge, answer)
    try:
        rows = decode(answer.content)
    except ValueError:
        raise _unsound(forge) from None
    if isinstance(rows, dict):
        rows = rows.get("repositories")  # lists of an installation have this form
    if not isinstance(rows, list):
        raise _unsound(forge)
    return rows


def check(forge: OpenForge, answer: Answer) -> None:
    """Check the status of an answer.

    Raises BadRequestError when the forge refuses the token, NotFoundError for objects that do not exist or that the
    token may not see, RemoteError for any other unsuccessful answer.
    """
    name = _NAMES[forge.kind]
    if answer.status in {401, 403}:
        raise BadRequestError(
            f"{name} refuses the token of the integration ({answer.status}): it ended or lacks a right"
        )
    if answer.status == 404:
        raise NotFoundError(f"{name} shows no such repository to the token of the integration")
    if not 200 <= answer.status < 300:
        raise RemoteError(f"{name} answers {answer.status}")


def _unsound(forge: OpenForge) -> RemoteError:
    return RemoteError(f"The answer of {forge.base_url} is none of {_NAMES[forge.kind]}'s: is its address right?")


def _repository(kind: ForgeKind, integration_id: UUID, row: dict[str, Any]) -> GithubRepository:
    gitlab = kind == "gitlab"
    return GithubRepository(
        host_integration_id=integration_id,
        id=int(row["id"]),
        name=str(row["path" if gitlab else "name"]),
        owner=str(row["namespace"]["full_path"] if gitlab else row["owner"]["login"]),
        # GitLab redirects an address without .git, and our git follows no redirects.
        url=str(row["http_url_to_repo"] if gitlab else row["html_url"]),
        default_branch=str(row.get("default_branch") or ""),  # an empty repository has no default branch
    )


def _sha_of(kind: ForgeKind, commit: dict[str, Any]) -> str:
    return str(commit["sha" if kind == "github" else "id"])
