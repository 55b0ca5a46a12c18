"""A real S3 server with credentials, for tests: SeaweedFS as one child process on free ports."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self
from urllib.parse import quote

import httpx

from moorage.kernel.aws_signature import Credentials

_READY_S = 30
_STOP_S = 5
_STARTS_MAX = 4


@dataclass(frozen=True)
class Key:
    """An identity of the S3 server. `actions` are words of SeaweedFS, such as `Write:bucket`."""

    access_key_id: str
    secret_access_key: str
    actions: tuple[str, ...]

    def as_credentials(self) -> dict[str, str]:
        return {"access_key_id": self.access_key_id, "secret_access_key": self.secret_access_key}

    async def lend(self) -> Credentials:
        return Credentials(self.access_key_id, self.secret_access_key)


ADMIN = Key("admin-key", "admin-secret", ("Admin", "Read", "Write", "List"))
EXPORTER = Key("export-key", "export-secret", ("Read:exports", "Write:exports", "List:exports"))
WRITER = Key("writer-key", "writer-secret", ("Write:exports",))
READER = Key("reader-key", "reader-secret", ("Read:exports", "List:exports"))
# Has no rights by itself. The role admits it, and has all rights in the one bucket.
TRUSTED = Key("trusted-key", "trusted-secret", ("Read:nothing",))
BUCKET = "exports"
ROLE = "arn:aws:iam::000000000000:role/exports"
_ROLES = {
    "sts": {
        "tokenDuration": "1h",
        "maxSessionLength": "12h",
        "issuer": "tests",
        "signingKey": "c2VhbGVkIGJ5IHRlc3Rz" * 2,
    },
    "policy": {"defaultEffect": "Deny", "storeType": "memory"},
    "roles": [
        {
            "roleName": "exports",
            "roleArn": ROLE,
            "trustPolicy": {
                "Version": "2012-10-17",
                "Statement": [
                    {
                        "Effect": "Allow",
                        "Principal": {"AWS": "arn:aws:iam::000000000000:user/trusted-key"},
                        "Action": ["sts:AssumeRole"],
                    }
                ],
            },
            "attachedPolicies": ["bucket"],
        }
    ],
    "policies": [
        {
            "name": "bucket",
            "document": {
                "Version": "2012-10-17",
                "Statement": [
                    {
                        "Effect": "Allow",
                        "Action": ["s3:*"],
                        "Resource": [f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"],
                    },
                    {"Effect": "Allow", "Action": ["sts:ValidateSession"], "Resource": ["*"]},
                ],
            },
        }
    ],
}


class Seaweed:
    """The server as a context: `with Seaweed() as s3:`. It answers, and has one empty bucket. Without keys it gives all
    rights to everybody.
    """

    def __init__(self, *, has_keys: bool = True) -> None:
        self._has_keys = has_keys

    def __enter__(self) -> Self:
        for _ in range(_STARTS_MAX - 1):
            with suppress(AssertionError):  # another process may take one of the ports before the server does
                return self._start()
        return self._start()

    def _start(self) -> Self:
        self._folder = TemporaryDirectory(prefix="moorage-s3-")
        folder = Path(self._folder.name)
        (folder / "data").mkdir()
        identities = [_identity(key) for key in (ADMIN, EXPORTER, WRITER, READER, TRUSTED)]
        (folder / "s3.json").write_text(json.dumps({"identities": identities}))
        (folder / "roles.json").write_text(json.dumps(_ROLES))
        ports = _free_ports()
        self.port = ports["s3.port"]
        self.url = f"http://127.0.0.1:{self.port}"
        self._filer = f"http://127.0.0.1:{ports['filer.port']}"
        self._log = folder / "log"
        with self._log.open("wb") as log:
            argv = _argv(folder, ports, has_keys=self._has_keys)
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder)
        try:
            self._await_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # nobody reads its files again
        self._process.wait(_STOP_S)
        self._folder.cleanup()

    def make_bucket(self, name: str) -> None:
        answer = httpx.post(f"{self._filer}/buckets/{name}/", timeout=5)
        assert answer.status_code in {201, 409}, answer.text

    def remove(self, path: str) -> None:
        """Remove `<bucket>/<key>` or a whole bucket without S3."""
        url = f"{self._filer}/buckets/{quote(path)}?recursive=true&ignoreRecursiveError=true"
        httpx.delete(url, timeout=10).raise_for_status()

    def _await_ready(self) -> None:
        give_up_at = time.monotonic() + _READY_S
        while time.monotonic() < give_up_at:
            assert self._process.poll() is None, self._log.read_text()
            try:
                self.make_bucket(BUCKET)
                # Writes are refused until the parts of the server have found each other.
                probe = httpx.put(f"{self._filer}/buckets/{BUCKET}/ready", content=b"1", timeout=5)
                if probe.is_success and httpx.get(self.url, timeout=5).status_code < 500:
                    self.remove(f"{BUCKET}/ready")
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        raise TimeoutError(self._log.read_text())


def _argv(folder: Path, ports: dict[str, int], *, has_keys: bool) -> list[str]:
    keys = [f"-s3.config={folder / 's3.json'}", f"-s3.iam.config={folder / 'roles.json'}"]
    return [
        str(Path(sys.executable).with_name("weed")),
        "server",
        f"-dir={folder / 'data'}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-filer",
        "-s3",
        *(keys if has_keys else []),
        "-s3.autoCreateBucket=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.volumeSizeLimitMB=256",
        "-volume.max=50",
        "-volume.preStopSeconds=0",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]


def _identity(key: Key) -> dict[str, object]:
    credentials = {"accessKey": key.access_key_id, "secretKey": key.secret_access_key}
    return {"name": key.access_key_id, "credentials": [credentials], "actions": list(key.actions)}


def _free_ports() -> dict[str, int]:
    names = ("master.port", "volume.port", "filer.port", "s3.port")
    names += tuple(f"{name}.grpc" for name in names)
    sockets = [socket.socket() for _ in names]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = {name: each.getsockname()[1] for name, each in zip(names, sockets, strict=True)}
    for each in sockets:
        each.close()
    return ports


def main() -> None:
    """Run one S3 server until a signal comes, and print its address: `python -m tests.exports.seaweed`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with Seaweed() as s3:
        access = {"endpoint_url": s3.url, "bucket_name": BUCKET, **EXPORTER.as_credentials()}
        sys.stdout.write(json.dumps(access) + "\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    main()
