"""Rules of the packet filter as text. tests/control/test_processes.py shows that they hold."""

from __future__ import annotations

import shutil
import socket
import subprocess

import pytest

from moorage.embedded import firewall
from moorage.embedded.processes import ENGINE_UID
from moorage.embedded.users import AGENT_UIDS


def test_the_rules_are_these() -> None:
    assert (
        firewall.RULES
        == """\
add table inet moorage
add set inet moorage admitted { typeof meta skuid . tcp dport; }
add chain inet moorage output { type filter hook output priority 0; policy accept; }
flush chain inet moorage output
add rule inet moorage output meta skuid != { 60706-60989, 60991-61183 } accept
add rule inet moorage output ip daddr 169.254.0.0/16 reject with icmpx admin-prohibited
add rule inet moorage output ip6 daddr { fe80::/10, fd00:ec2::254 } reject with icmpx admin-prohibited
add rule inet moorage output oifname != "lo" accept
add rule inet moorage output ct state established,related accept
add rule inet moorage output meta l4proto { tcp, udp } th dport 53 accept
add rule inet moorage output meta skuid . tcp dport @admitted accept
add rule inet moorage output tcp dport < 32768 reject with tcp reset
add rule inet moorage output udp dport < 32768 reject with icmpx admin-prohibited
add chain inet moorage input { type filter hook input priority 0; policy accept; }
flush chain inet moorage input
add rule inet moorage input iifname != "moor-*" accept
add rule inet moorage input ct state established,related accept
add rule inet moorage input meta l4proto { tcp, udp } th dport 53 accept
add rule inet moorage input reject with icmpx admin-prohibited
add chain inet moorage forward { type filter hook forward priority 0; policy accept; }
flush chain inet moorage forward
add rule inet moorage forward iifname != "moor-*" accept
add rule inet moorage forward ip daddr 169.254.0.0/16 reject with icmpx admin-prohibited
add rule inet moorage forward ip6 daddr { fe80::/10, fd00:ec2::254 } reject with icmpx admin-prohibited
"""
    )
    assert ENGINE_UID == 60990


def test_an_admission_names_one_user_and_its_ports() -> None:
    uid = AGENT_UIDS[0]
    assert firewall.admission(uid, {2024, 80}) == f"add element inet moorage admitted {{ {uid} . 80, {uid} . 2024 }}\n"
    assert firewall.admission(uid, ()) == ""


@pytest.mark.parametrize("uid", [0, ENGINE_UID, 1000])
def test_nobody_but_agents_is_admitted(uid: int) -> None:
    with pytest.raises(ValueError, match="no agents' user"):
        firewall.admission(uid, {80})


@pytest.mark.skipif(not firewall.close(), reason="only root, with nftables, sets rules")
def test_rules_that_somebody_removed_are_back_with_the_next_agent() -> None:
    program = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin")
    assert program
    subprocess.run([program, "delete", "table", "inet", "moorage"], check=True)
    firewall.admit(AGENT_UIDS[-1], {2024})
    shown = _shown()
    assert f"{AGENT_UIDS[-1]} . 2024" in shown
    assert "169.254.0.0/16" in shown


def _shown() -> str:
    command = [shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin") or "nft", "list", "table", "inet", "moorage"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not firewall.close(), reason="only root, with nftables, sets rules")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_client_has_as_many_connections_as_the_limit_says(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family, backlog=64) as server:
        host, port = server.getsockname()[:2]
        for limit in (5, 3):  # the later limit applies
            assert firewall.limit_connections(port, limit)
            assert _connections(host, port, 8) == limit
        firewall.lift_connection_limit(port)
        assert _connections(host, port, 8) == 8
        assert f"front_door_{port}" not in _shown()


def _connections(host: str, port: int, tried: int) -> int:
    """Return how many connections are accepted."""
    taken = []
    try:
        for _ in range(tried):
            try:
                taken.append(socket.create_connection((host, port), timeout=5))
            except ConnectionRefusedError:
                pass
        return len(taken)
    finally:
        for connection in taken:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closed at once
            connection.close()
