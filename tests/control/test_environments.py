from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moorage.control.environments import BuildConfig, index_variables, plan_environment, read_build_config
from moorage.kernel.encoding import encode
from moorage.kernel.errors import InvalidRequestError

WHEEL = Path("/wheels/moorage-1-py3-none-any.whl")


def config(**keys: Any) -> BuildConfig:
    return BuildConfig.model_validate({"graphs": {"agent": "./agent.py:graph"}, **keys})


def test_packages_by_name_are_installed_beside_the_agent_server(tmp_path: Path) -> None:
    plan = plan_environment(config(dependencies=["langchain-openai>=0.3", "httpx"]), tmp_path, tmp_path, WHEEL)
    assert plan.install == [str(WHEEL), "langchain-openai>=0.3", "httpx"]
    assert plan.exports == []
    assert plan.python is None


def test_a_local_package_is_installed_in_place(tmp_path: Path) -> None:
    (tmp_path / "libs/common").mkdir(parents=True)
    (tmp_path / "libs/common/pyproject.toml").touch()
    (tmp_path / "apps/one").mkdir(parents=True)
    plan = plan_environment(config(dependencies=["./../../libs/common"]), tmp_path / "apps/one", tmp_path, WHEEL)
    assert plan.install == [str(WHEEL), "--editable", str(tmp_path / "libs/common")]


def test_a_folder_without_a_package_needs_its_requirements_only(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").touch()
    assert plan_environment(config(dependencies=["."]), tmp_path, tmp_path, WHEEL).install == [
        str(WHEEL), "-r", str(tmp_path / "requirements.txt"),
    ]  # fmt: skip
    (tmp_path / "requirements.txt").unlink()
    assert plan_environment(config(dependencies=["."]), tmp_path, tmp_path, WHEEL).install == [str(WHEEL)]


def test_a_lock_file_is_what_counts(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "uv.lock", "requirements.txt"):
        (tmp_path / name).touch()
    plan = plan_environment(config(dependencies=["."]), tmp_path, tmp_path, WHEEL)
    assert plan.exports[0][:3] == ["export", "--project", str(tmp_path)]
    assert "--frozen" in plan.exports[0]
    assert plan.install == [str(WHEEL), "-r", "locked-0.txt", "--editable", str(tmp_path)]


@pytest.mark.parametrize("dependency", ["--index-url=https://evil.test", "-r/etc/passwd", "", "/etc", "@x"])
def test_a_dependency_that_the_installer_could_take_as_an_option_is_refused(dependency: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="neither a folder nor the name of a package"):
        plan_environment(config(dependencies=[dependency]), tmp_path, tmp_path, WHEEL)


@pytest.mark.parametrize("dependency", ["./../../x", "./missing", "./../.."])
def test_a_folder_that_is_not_of_the_source_is_refused(dependency: str, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    with pytest.raises(InvalidRequestError, match=r"leaves the source|not a folder of the source"):
        plan_environment(config(dependencies=[dependency]), tmp_path / "app", tmp_path, WHEEL)


def test_the_indexes_of_a_pip_configuration_become_options(tmp_path: Path) -> None:
    text = "[global]\nindex-url = https://a.test/simple\nextra-index-url =\n  https://b.test\n  https://c.test\n"
    (tmp_path / "pip.conf").write_text(text)
    plan = plan_environment(config(pip_config_file="./pip.conf"), tmp_path, tmp_path, WHEEL)
    assert plan.install == [
        *("--default-index", "https://a.test/simple"),
        *("--index", "https://b.test", "--index", "https://c.test"),
        str(WHEEL),
    ]
    with pytest.raises(InvalidRequestError, match="pip_config_file"):
        plan_environment(config(pip_config_file="../pip.conf"), tmp_path, tmp_path, WHEEL)


def test_a_build_sees_of_the_secrets_only_its_indexes() -> None:
    secrets = {"OPENAI_API_KEY": "x", "PIP_INDEX_URL": "a", "UV_INDEX": "b", "UV_INDEX_MINE_PASSWORD": "c", "PATH": "d"}
    assert index_variables(secrets) == {"UV_DEFAULT_INDEX": "a", "UV_INDEX": "b", "UV_INDEX_MINE_PASSWORD": "c"}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"graphs": {}}, "graphs"),
        ({"dependencies": "x"}, "dependencies"),
        ({"python_version": "3.11; rm"}, "python_version"),
        ({"node_version": "20"}, "container image"),
        ({"dockerfile_lines": ["RUN x"]}, "container image"),
        ({"source": {"kind": "uv", "root": "."}}, "source is set: name the folder"),
        ({"encryption": {"path": "./e.py:e"}}, "sets encryption, which encrypts what is stored"),
    ],
)
def test_a_configuration_that_cannot_be_built_says_why(keys: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = tmp_path / "langgraph.json"
    file.write_bytes(encode({"graphs": {"agent": "./agent.py:graph"}, **keys}))
    with pytest.raises(InvalidRequestError, match=words):
        read_build_config(file)


def test_keys_without_effect_are_warnings_for_the_log(tmp_path: Path) -> None:
    file = tmp_path / "langgraph.json"
    file.write_bytes(encode({"graphs": {"agent": "./agent.py:graph"}, "image_distro": "wolfi", "atuh": 1}))
    _, warnings = read_build_config(file)
    assert [warning.partition(":")[0] for warning in warnings] == [
        "langgraph.json sets image_distro, which has no effect",
        "langgraph.json sets atuh, which has no effect",
    ]


def test_a_configuration_that_is_missing_or_broken_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"There is no langgraph\.json"):
        read_build_config(tmp_path / "langgraph.json")
    (tmp_path / "langgraph.json").write_text("{")
    with pytest.raises(InvalidRequestError, match="cannot be read as JSON"):
        read_build_config(tmp_path / "langgraph.json")
