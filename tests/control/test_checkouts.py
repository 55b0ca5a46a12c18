from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import quote

import pytest

from moorage.control.checkouts import (
    FetchError,
    GitPolicy,
    Limits,
    RunsAs,
    candidates,
    check_ref,
    fetch_commit,
    inside,
    unpack,
)
from moorage.control.isolation import find_isolation
from moorage.embedded import processes
from moorage.kernel.addresses import Address
from moorage.kernel.errors import InvalidRequestError, StartupError
from moorage.settings.platform import PlatformSettings
from moorage.wiring.control import control_options
from tests.control.repositories import commit, git, git_server, make_repository
from tests.platform.serving import make_folder

LOCAL = GitPolicy(protocols=("http", "https", "file"), private_addresses=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "served" / "agent", {"langgraph.json": "{}", "src/agent.py": "first = 1\n"})


@pytest.fixture
def origin(repository: Path) -> Iterator[str]:
    with git_server(repository.parent) as url:
        yield f"{url}/agent/.git"


async def test_a_branch_is_checked_out_at_its_newest_commit(repository: Path, origin: str, tmp_path: Path) -> None:
    newest = commit(repository, {"src/agent.py": "second = 2\n"})
    sha = await fetch_commit(origin, "main", tmp_path / "out", LOCAL)
    assert sha == newest
    assert (tmp_path / "out/src/agent.py").read_text() == "second = 2\n"
    assert not (tmp_path / "out/.git").exists()


async def test_a_tag_by_its_short_and_full_name_and_a_commit_by_its_sha(
    repository: Path, origin: str, tmp_path: Path
) -> None:
    first = git(repository, "rev-parse", "HEAD")
    git(repository, "tag", "v1")
    commit(repository, {"src/agent.py": "second = 2\n"})
    git(repository, "config", "uploadpack.allowReachableSHA1InWant", "true")
    for number, ref in enumerate(("v1", "refs/tags/v1", first)):
        assert await fetch_commit(origin, ref, tmp_path / str(number), LOCAL) == first


async def test_a_branch_wins_over_a_tag_of_the_same_name(repository: Path, origin: str, tmp_path: Path) -> None:
    git(repository, "tag", "release")
    git(repository, "checkout", "--quiet", "-b", "release")
    newest = commit(repository, {"branch.txt": "branch\n"})
    assert await fetch_commit(origin, "release", tmp_path / "out", LOCAL) == newest


async def test_what_the_remote_does_not_have_is_said_with_its_words(origin: str, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"couldn't find remote ref refs/tags/no-such-branch"):
        await fetch_commit(origin, "no-such-branch", tmp_path / "out", LOCAL)
    with pytest.raises(FetchError, match="not found"):
        await fetch_commit(origin.replace("agent", "nobody"), "main", tmp_path / "out", LOCAL)
    assert not (tmp_path / "out").exists()


async def test_a_repository_that_is_too_large_is_not_kept(repository: Path, origin: str, tmp_path: Path) -> None:
    commit(repository, {f"{number}.txt": str(number) * 300_000 for number in range(10)})
    with pytest.raises(FetchError, match="larger than 1 MB"):
        await fetch_commit(origin, "main", tmp_path / "out", LOCAL, Limits(bytes_max=2**20))
    assert not (tmp_path / "out").exists()


async def test_a_link_that_leaves_the_checkout_is_refused(repository: Path, origin: str, tmp_path: Path) -> None:
    (repository / "inner").symlink_to("src/agent.py")
    commit(repository, {})
    await fetch_commit(origin, "main", tmp_path / "good", LOCAL)
    (repository / "passwords").symlink_to("/etc/passwd")
    commit(repository, {})
    with pytest.raises(InvalidRequestError, match="passwords is a link that leaves the source"):
        await fetch_commit(origin, "main", tmp_path / "out", LOCAL)
    assert not (tmp_path / "out").exists()


async def test_submodules_and_hooks_of_the_host_play_no_part(repository: Path, origin: str, tmp_path: Path) -> None:
    other = make_repository(tmp_path / "other", {"secret.txt": "inner"})
    git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "vendored")
    commit(repository, {})
    await fetch_commit(origin, "main", tmp_path / "out", LOCAL)
    assert not list((tmp_path / "out/vendored").iterdir())


@pytest.mark.parametrize(
    "url",
    [
        "http://example.test/a.git",
        "ext::sh -c touch% /tmp/x",
        "ext::https://example.test",
        "--upload-pack=touch /tmp/x",
        "-oProxyCommand=x",
        "file:///etc",
        "/etc/passwd",
        "git@example.test:a/b.git",
        "ssh://git@example.test/a/b.git",
        "https://token@example.test/a.git",
        "https://user:token@example.test/a.git",
        "https:///a.git",
        "https://example.test:abc/a.git",
        "https://example.test/a b.git",
        "https://example.test/a\n.git",
        "https://example.test/" + "a" * 3000,
    ],
)
async def test_an_url_that_is_not_plain_https_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="repository URL"):
        await fetch_commit(url, "main", tmp_path / "out", GitPolicy())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("url", ["ssh://example.test/a.git", "git://example.test/a.git"])
async def test_forms_that_look_a_name_up_themselves_are_checked_and_not_dialled(url: str, tmp_path: Path) -> None:
    """Holds even if a policy names these protocols."""

    async def resolve(host: str) -> list[Address]:
        return [ip_address("127.0.0.1")]

    policy = GitPolicy(protocols=("ssh", "git"), resolve=resolve)
    with pytest.raises(InvalidRequestError, match=r"loopback IP range|must begin with"):
        await fetch_commit(url, "main", tmp_path / "out", policy)


@pytest.mark.parametrize("protocol", ["git", "ext", "ftp", ""])
def test_protocols_that_cannot_be_pinned_are_no_setting(protocol: str, tmp_path: Path) -> None:
    settings = PlatformSettings(MOORAGE_GIT_PROTOCOLS=f"https,{protocol}")
    with pytest.raises(StartupError, match="MOORAGE_GIT_PROTOCOLS"):
        control_options(settings, tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
async def test_git_runs_as_the_deployments_user_and_what_it_fetched_is_ours(repository: Path) -> None:
    user = RunsAs(processes.ENGINE_UID)
    with make_folder() as folder:
        open_one = make_repository(folder / "open", {"langgraph.json": "{}", "run.sh": "#!/bin/sh\n"})
        (open_one / "run.sh").chmod(0o755)
        sha = commit(open_one, {})
        assert await fetch_commit(f"file://{open_one}", "main", folder / "out", LOCAL, runs_as=user) == sha
        found = {path: path.lstat() for path in (folder / "out", *(folder / "out").rglob("*"))}
        assert {state.st_uid for state in found.values()} == {0}
        assert os.access(folder / "out/run.sh", os.X_OK)
        # Only ours: the user that git runs as cannot read it.
        closed = make_repository(folder / "closed", {"secret.txt": "x"})
        closed.chmod(0o700)
        with pytest.raises(FetchError):
            await fetch_commit(f"file://{closed}", "main", folder / "stolen", LOCAL, runs_as=user)
        assert not (folder / "stolen").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
async def test_a_sandboxed_git_sees_a_repository_in_a_folder_that_is_hidden_from_it() -> None:
    isolation = find_isolation()
    assert isolation.program is not None, "bubblewrap comes as a package"
    with make_folder() as folder:
        repository = make_repository(folder / "in tmp", {"langgraph.json": "{}"})
        sha = commit(repository, {"agent.py": ""})
        user = RunsAs(processes.ENGINE_UID, isolation.wrapped)
        url = f"file://{quote(str(repository))}"
        assert await fetch_commit(url, "main", folder / "out", LOCAL, runs_as=user) == sha


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "100.64.0.1", "fd00::1"])
async def test_an_address_that_is_not_public_is_refused_whatever_its_name(address: str, tmp_path: Path) -> None:
    async def resolve(host: str) -> list[Address]:
        return [ip_address("93.184.216.34"), ip_address(address)]

    with pytest.raises(InvalidRequestError, match="IP range, which is not allowed"):
        await fetch_commit("https://git.example.test/a.git", "main", tmp_path / "out", GitPolicy(resolve=resolve))


async def test_git_connects_to_the_address_that_was_checked(repository: Path, origin: str, tmp_path: Path) -> None:
    """The name is only known to the resolver of this test."""

    async def resolve(host: str) -> list[Address]:
        return [ip_address("127.0.0.1")]

    policy = GitPolicy(protocols=("http",), private_addresses=True, resolve=resolve)
    url = origin.replace("127.0.0.1", "moorage-no-such-name.invalid")
    assert await fetch_commit(url, "main", tmp_path / "out", policy) == git(repository, "rev-parse", "HEAD")


@pytest.mark.parametrize("ref", ["main", "feature/x-1", "v1.2", "refs/tags/v1", "a" * 40, "0.6.x"])
def test_names_of_references_that_git_takes(ref: str) -> None:
    check_ref(ref)


@pytest.mark.parametrize(
    "ref",
    ["", "-x", "--upload-pack=x", "a..b", "a b", "a\nb", "a~1", "a^", "a:b", "x?", "[x", "a\\b", "/a", "a/", "a//b", "@",
     "a@{1}", ".a", "a/.b", "a.lock", "a.lock/b", "a.", "a" * 256],
)  # fmt: skip
def test_names_of_references_that_are_refused(ref: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not the name of a branch, tag or commit"):
        check_ref(ref)


def test_a_full_name_is_asked_for_alone() -> None:
    assert candidates("main") == ["refs/heads/main", "refs/tags/main"]
    assert candidates("refs/tags/v1") == ["refs/tags/v1"]
    assert candidates("a" * 40) == ["a" * 40]


@pytest.mark.parametrize("relative", ["../x", "/etc/passwd", "a/../../x", "link/x", "a\0b"])
def test_a_path_that_leaves_the_checkout_is_refused(relative: str, tmp_path: Path) -> None:
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout/link").symlink_to(tmp_path)
    with pytest.raises(InvalidRequestError, match="config path"):
        inside(tmp_path / "checkout", relative, "The config path")


def test_a_path_in_the_checkout(tmp_path: Path) -> None:
    assert inside(tmp_path, "apps/one/langgraph.json", "x") == tmp_path.resolve() / "apps/one/langgraph.json"
    assert inside(tmp_path, "apps/../langgraph.json", "x") == tmp_path.resolve() / "langgraph.json"


def _archive(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def _member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def test_an_upload_is_unpacked(tmp_path: Path) -> None:
    archive = _archive(tmp_path / "a.tgz", [(_member("langgraph.json"), b"{}"), (_member("src/agent.py"), b"x = 1\n")])
    unpack(archive, tmp_path / "out")
    assert (tmp_path / "out/src/agent.py").read_text() == "x = 1\n"


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (_member("../outside"), "leaves its folder"),
        (_member("a/../../outside"), "leaves its folder"),
        (_member("/absolute/../../etc/x"), "leaves its folder"),
        (_member("link", tarfile.SYMTYPE, "/etc"), "neither a file nor a folder"),
        (_member("hard", tarfile.LNKTYPE, "langgraph.json"), "neither a file nor a folder"),
        (_member("device", tarfile.CHRTYPE), "neither a file nor a folder"),
        (_member("pipe", tarfile.FIFOTYPE), "neither a file nor a folder"),
    ],
)
def test_an_upload_that_reaches_out_is_refused(member: tarfile.TarInfo, words: str, tmp_path: Path) -> None:
    archive = _archive(tmp_path / "a.tgz", [(_member("langgraph.json"), b"{}"), (member, b"")])
    with pytest.raises(InvalidRequestError, match=words):
        unpack(archive, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tgz"]


def test_a_bomb_is_refused_by_its_size_and_by_its_count(tmp_path: Path) -> None:
    big = _archive(tmp_path / "big.tgz", [(_member("zeros"), b"\0" * 5_000_000)])
    with pytest.raises(InvalidRequestError, match="unpacks to more than 1 MB"):
        unpack(big, tmp_path / "out", Limits(bytes_max=2**20))
    many = _archive(tmp_path / "many.tgz", [(_member(f"{number}"), b"") for number in range(30)])
    with pytest.raises(InvalidRequestError, match="more than 20 files"):
        unpack(many, tmp_path / "out", Limits(files_max=20))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"not an archive", b"\x1f\x8b\x08\x00broken"])
def test_an_upload_that_is_no_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.tgz").write_bytes(content)
    with pytest.raises(InvalidRequestError, match=r"not a tar\.gz archive"):
        unpack(tmp_path / "a.tgz", tmp_path / "out")


def test_an_upload_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    whole = _archive(tmp_path / "a.tgz", [(_member("random"), bytes(range(256)) * 4000)])
    whole.write_bytes(whole.read_bytes()[:-400])
    with pytest.raises(InvalidRequestError, match="cut short"):
        unpack(whole, tmp_path / "out")
    assert not (tmp_path / "out").exists()
