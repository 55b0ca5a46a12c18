"""Changes of a deployment: pure functions from the stored deployment and a request to the new deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from moorage.control.checkouts import GitPolicy, check_ref
from moorage.control.records.deployments import (
    DeploymentCreate,
    DeploymentPatch,
    SourceConfigRequest,
    StoredDeployment,
    complete_config,
)
from moorage.control.records.host_names import checked_url, host_name_of
from moorage.control.records.images import NO_IMAGES, is_reference
from moorage.control.records.resources import given_spec
from moorage.control.records.revisions import meaningless_fields, missing_fields
from moorage.control.records.secrets import MASK, Secret, SecretReference
from moorage.control.records.states import TERMINAL, RevisionStatus, Source
from moorage.kernel.encoding import encode
from moorage.kernel.errors import BadRequestError, InvalidRequestError

_CONFIG_BYTES_MAX = 256 * 1024
_IMMUTABLE = ("integration_id", "repo_url", "deployment_type", "listener_id", "listener_config")


@dataclass(frozen=True)
class DeploymentRules:
    """Settings that limit deployments. `public_url` is the origin that users see, without a trailing slash.
    `platform_names` are the host names of the platform; the one of `public_url` is always among them.
    """

    public_url: str
    git: GitPolicy
    platform_names: frozenset[str] = frozenset()
    runs_images: bool = False
    serves_https: bool = False
    workers_max: int = 16  # of one agent: they share a machine and a database
    takes_orders: bool = False  # as a listener: the ordering platform identifies its agents


@dataclass(frozen=True)
class Changed:
    """A deployment's settings after a request, and the content of its next revision, if the request makes one."""

    source_config: dict[str, Any]
    secret_references: list[dict[str, str]]
    source: Source
    source_revision_config: dict[str, str]
    asks_for_revision: bool

    @property
    def host_name(self) -> str | None:
        """Return the deployment's own host name, or None."""
        return host_name_of(self.source_config.get("custom_url"))

    @property
    def lacks(self) -> list[str]:
        """Return the names of the required fields that are missing before a revision can be made."""
        missing = [
            f"source_revision_config.{name}" for name in missing_fields(self.source_revision_config, self.source)
        ]
        if self.source is Source.GITHUB and not self.source_config.get("repo_url"):
            missing.append("source_config.repo_url")
        return missing


def begun(new: DeploymentCreate, rules: DeploymentRules) -> Changed:
    """Return the settings of a new deployment, without a revision if its source is uploaded later. Raises
    BadRequestError or InvalidRequestError.
    """
    given = new.source_revision_config.given()
    if "source_tarball_path" in given:
        raise BadRequestError(
            "source_tarball_path is a path that upload-url of this deployment gives: create the deployment without one, "
            "upload, then PATCH"
        )
    changed = Changed(
        _set_config({}, new.source_config, new.name, rules),
        _references(new.secret_references or [], new.source),
        new.source,
        _checked(given, new.source, rules, runs_here=new.source_config.listener_id is None),
        asks_for_revision=bool(given),
    )
    _check_config(changed.source_config, given.get("repo_ref"), rules)
    if changed.source_config.get("repo_url"):
        rules.git.check_url(changed.source_config["repo_url"])
    return changed


def after(stored: StoredDeployment, patch: DeploymentPatch, rules: DeploymentRules) -> Changed:
    """Return the settings of a deployment after a patch. Raises BadRequestError or InvalidRequestError."""
    kept = Source(stored["source"])
    given = patch.source_revision_config.given() if patch.source_revision_config else {}
    # Without a source in the request, the next revision reuses the source and changes only the settings.
    source = Source(patch.revision_source or (kept if given else stored["latest_source"] or kept))
    wanted = patch.source_config or SourceConfigRequest()
    _check_immutable(stored, wanted)
    config = _set_config(stored["source_config"], wanted, stored["name"], rules)
    if config.get("repo_url") != stored["source_config"].get("repo_url"):
        rules.git.check_url(config["repo_url"])
    revision_config = stored["source_revision_config"] | _checked(
        given, source, rules, runs_here="listener_id" not in config
    )
    _check_config(config, revision_config.get("repo_ref"), rules)
    references = stored["secret_references"]
    if patch.secret_references is not None:
        references = _references(patch.secret_references, kept)
    return Changed(
        config,
        references,
        source,
        revision_config,
        asks_for_revision=patch.source_revision_config is not None
        or wanted.resource_spec is not None
        or sets_secrets(patch.secrets, stored["secret_names"])
        or bool(patch.remove_secrets)
        or references != stored["secret_references"],
    )


def sets_secrets(given: list[Secret] | None, names: list[str]) -> bool:
    """Return True if the list changes any secret. An empty list changes nothing, and neither does a list of masked
    values from an answer.
    """
    if not given:
        return False
    return any(secret.value != MASK for secret in given) or {secret.name for secret in given} != set(names)


def _checked(given: dict[str, str], source: Source, rules: DeploymentRules, *, runs_here: bool) -> dict[str, str]:
    if fields := meaningless_fields(given, source):
        raise BadRequestError(
            f"source_revision_config.{fields[0]} has no meaning for a revision of the source {source}"
        )
    if "image_uri" in given:
        _check_image(given["image_uri"], runs_images=rules.runs_images or not runs_here)
    if "repo_ref" in given:
        check_ref(given["repo_ref"])
    return given


def _check_image(reference: str, *, runs_images: bool) -> None:
    if not runs_images:
        raise BadRequestError(NO_IMAGES)
    if not is_reference(reference):
        raise BadRequestError(
            "source_revision_config.image_uri is no name of an image: write registry.example.com/agent:1, or "
            "registry.example.com/agent@sha256:… for a digest"
        )


def _set_config(
    config: Mapping[str, Any], wanted: SourceConfigRequest, name: str, rules: DeploymentRules
) -> dict[str, Any]:
    given = wanted.model_dump(exclude_none=True, exclude={"resource_spec", "custom_url"})
    if wanted.resource_spec is not None:
        given["resource_spec"] = given_spec(wanted.resource_spec)
    changed = {**config, **given}
    if "custom_url" in wanted.model_fields_set:  # null has a meaning here: it removes the address
        changed.pop("custom_url", None)
        if url := _own_address(wanted.custom_url, config, name, rules):
            changed["custom_url"] = url
    return changed


def _own_address(url: str | None, config: Mapping[str, Any], name: str, rules: DeploymentRules) -> str | None:
    """Return the deployment's own address, or None if the URL is its address at the platform: clients send that back as
    they read it.
    """
    if url is None or urlsplit(url).path == f"/d/{name}":
        return None
    if url == config.get("custom_url"):
        return url  # accepted even if the current settings would refuse it
    return checked_url(url, rules.platform_names | {urlsplit(rules.public_url).hostname or ""})


def _check_immutable(stored: StoredDeployment, wanted: SourceConfigRequest) -> None:
    """Refuse a change of the source, unless the first attempt has ended without ever serving."""
    latest = stored["latest_status"]
    if stored["active_revision_id"] is None and (latest is None or RevisionStatus(latest) in TERMINAL):
        return
    given, config = wanted.model_dump(exclude_none=True), stored["source_config"]
    for name in _IMMUTABLE:
        if given.get(name) and given[name] != config.get(name):
            raise BadRequestError(f"source_config.{name} cannot be changed: make another deployment")


def _check_config(config: dict[str, Any], repo_ref: str | None, rules: DeploymentRules) -> None:
    if config.get("build_on_push") and (repo_ref or "").startswith("refs/tags/"):
        raise BadRequestError(
            "source_config.build_on_push must be false when repo_ref is a tag: nothing is pushed to one"
        )
    if len(encode(config)) > _CONFIG_BYTES_MAX:
        raise InvalidRequestError(f"source_config is larger than {_CONFIG_BYTES_MAX // 1024} KB")
    spec, kind = complete_config(config)["resource_spec"], config.get("deployment_type") or ""
    if spec["min_scale"] == 0 and config.get("resource_spec", {}).get("min_scale") == 0 and not kind.endswith("_zero"):
        raise InvalidRequestError(
            "resource_spec.min_scale is 0 for the deployment types dev_zero and dev_free_zero only"
        )
    for name in ("min_scale", "max_scale"):
        if spec[name] > rules.workers_max:
            raise InvalidRequestError(
                f"resource_spec.{name} is {rules.workers_max} at most on this installation: all processes of an agent run "
                "on one machine"
            )


def _references(given: list[SecretReference], source: Source) -> list[dict[str, str]]:
    if given and source is not Source.EXTERNAL_DOCKER:
        raise BadRequestError("secret_references are for the source external_docker only: use secrets")
    return [reference.model_dump() for reference in given]
