"""Dockerfiles as text. tests/platform/test_images.py shows that they build and serve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moorage.control.dockerfiles import build_root, dockerfile
from moorage.control.environments import read_build_config
from moorage.kernel.errors import InvalidRequestError
from tests.platform.serving import moorage


def written(folder: Path, **keys: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "langgraph.json"
    file.write_text(json.dumps({"graphs": {"agent": "./agent.py:graph"}, "dependencies": ["."], **keys}))
    return file


def text_of(file: Path, base_image: str | None = None) -> str:
    config, _ = read_build_config(file, for_image=True)
    return dockerfile(config, file, build_root(config, file.parent), "moorage-1.whl", base_image)


def test_a_project_is_copied_installed_and_served(tmp_path: Path) -> None:
    file = written(tmp_path / "my agent", dependencies=[".", "sniffio"], dockerfile_lines=["RUN apt-get update"])
    (file.parent / "requirements.txt").write_text("httpx")
    assert (
        text_of(file)
        == """\
FROM python:3.12-slim
RUN apt-get update
RUN command -v uv || python -m pip install --no-cache-dir uv
COPY [".moorage/moorage-1.whl","/moorage/"]
COPY [".","/deps/my-agent/"]
WORKDIR /deps/my-agent
RUN ["uv","pip","install","--system","--no-cache","--compile-bytecode","/moorage/moorage-1.whl",\
"-r","/deps/my-agent/requirements.txt","sniffio"]
ENV PORT=8000
EXPOSE 8000
CMD ["python","-P","-m","moorage","serve","--config","/deps/my-agent/langgraph.json","--host","0.0.0.0"]
""".replace("\\\n", "")
    )


def test_the_base_image_is_the_option_or_the_key_or_the_python_that_is_asked_for(tmp_path: Path) -> None:
    file = written(tmp_path / "agent", base_image="mine:1", python_version="3.11")
    assert text_of(file).startswith("FROM mine:1\n")
    assert text_of(file, "other:2").startswith("FROM other:2\n")
    assert text_of(written(tmp_path / "agent", python_version="3.11")).startswith("FROM python:3.11-slim\n")


def test_local_dependencies_beside_the_project_are_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "repo" / "libs" / "shared").mkdir(parents=True)
    (tmp_path / "repo" / "libs" / "shared" / "pyproject.toml").touch()
    text = text_of(written(tmp_path / "repo" / "apps" / "agent", dependencies=[".", "../../libs/shared"]))
    assert "WORKDIR /deps/repo/apps/agent\n" in text
    assert '"--editable","/deps/repo/libs/shared"' in text


def test_javascript_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="node_version"):
        text_of(written(tmp_path, node_version="20"))


def test_the_command_writes_what_a_build_by_hand_needs(tmp_path: Path) -> None:
    file = written(tmp_path / "agent", env=".env", image_distro="wolfi")
    (file.parent / ".env").write_text("A=1")
    code, _, err = moorage("dockerfile", file.parent / "Dockerfile", "--config", file)
    assert code == 0, err
    assert "image_distro has no effect" in err
    assert f"docker build -f {file.parent}/Dockerfile {file.parent}" in err
    [wheel] = (file.parent / ".moorage").glob("*.whl")
    assert f'COPY [".moorage/{wheel.name}","/moorage/"]' in (file.parent / "Dockerfile").read_text()
    assert ".env" in (file.parent / "Dockerfile.dockerignore").read_text().splitlines()


def test_a_build_without_an_engine_says_so(tmp_path: Path) -> None:
    file = written(tmp_path / "agent")
    options = ["-t", "localhost/agent:1", "-c", file, "--docker-host", f"unix://{tmp_path}/none.sock"]
    code, _, err = moorage("build", *options)
    assert code == 1
    assert "The container engine does not answer" in err
    code, _, err = moorage("build", "-t", "a", "-c", file, "--docker-host", "tcp://127.0.0.1:1")
    assert "is no Unix socket of a container engine" in err
