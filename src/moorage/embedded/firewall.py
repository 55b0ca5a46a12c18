"""Rules of the kernel's packet filter, set by the program `nft`: which ports of this machine agents may reach, and how
many connections one client may have to a port of the platform.

The rules on agents apply only to the operating-system users of agents, of all installations. Other machines stay
reachable, except for link-local addresses, where clouds hand out credentials of the machine.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Collection

from moorage.embedded.processes import ENGINE_UID
from moorage.embedded.users import AGENT_UIDS
from moorage.kernel.errors import EngineError

_NFT_S = 10.0
# The kernel assigns ports from here on: an agent's own helper programs listen there.
_FIRST_OWN_PORT = 32_768
# The limit of counted clients. New clients above it are not counted.
_CLIENTS_MAX = 65_535
# The prefix of names of bridges to which containers of agents are connected.
BRIDGES = "moor-"
# Without the user of the engines, whose number is in this range.
_AGENTS = f"{{ {AGENT_UIDS[0]}-{ENGINE_UID - 1}, {ENGINE_UID + 1}-{AGENT_UIDS[-1]} }}"

# One transaction, which may be repeated. Admitted ports are kept.
RULES = f"""\
add table inet moorage
add set inet moorage admitted {{ typeof meta skuid . tcp dport; }}
add chain inet moorage output {{ type filter hook output priority 0; policy accept; }}
flush chain inet moorage output
add rule inet moorage output meta skuid != {_AGENTS} accept
add rule inet moorage output ip daddr 169.254.0.0/16 reject with icmpx admin-prohibited
add rule inet moorage output ip6 daddr {{ fe80::/10, fd00:ec2::254 }} reject with icmpx admin-prohibited
add rule inet moorage output oifname != "lo" accept
add rule inet moorage output ct state established,related accept
add rule inet moorage output meta l4proto {{ tcp, udp }} th dport 53 accept
add rule inet moorage output meta skuid . tcp dport @admitted accept
add rule inet moorage output tcp dport < {_FIRST_OWN_PORT} reject with tcp reset
add rule inet moorage output udp dport < {_FIRST_OWN_PORT} reject with icmpx admin-prohibited
add chain inet moorage input {{ type filter hook input priority 0; policy accept; }}
flush chain inet moorage input
add rule inet moorage input iifname != "{BRIDGES}*" accept
add rule inet moorage input ct state established,related accept
add rule inet moorage input meta l4proto {{ tcp, udp }} th dport 53 accept
add rule inet moorage input reject with icmpx admin-prohibited
add chain inet moorage forward {{ type filter hook forward priority 0; policy accept; }}
flush chain inet moorage forward
add rule inet moorage forward iifname != "{BRIDGES}*" accept
add rule inet moorage forward ip daddr 169.254.0.0/16 reject with icmpx admin-prohibited
add rule inet moorage forward ip6 daddr {{ fe80::/10, fd00:ec2::254 }} reject with icmpx admin-prohibited
"""


def admission(uid: int, ports: Collection[int]) -> str:
    """Return the rules that let one agents' user reach these TCP ports of the machine. May be repeated."""
    if uid not in AGENT_UIDS:
        raise ValueError(f"{uid} is no agents' user")
    elements = ", ".join(f"{uid} . {port}" for port in sorted(ports))
    return f"add element inet moorage admitted {{ {elements} }}\n" if elements else ""


def close() -> bool:
    """Set the rules, and return True if the machine accepts them. Needs root, nftables, and the right to change the
    network.
    """
    program = _program()
    return program is not None and not _run(program, RULES)


def admit(uid: int, ports: Collection[int]) -> None:
    """Let one agents' user reach these TCP ports of the machine, and set all rules again, in case they were removed.

    Raises EngineError when the machine refuses the rules.
    """
    program = _program()
    wrong = _run(program, RULES + admission(uid, ports)) if program else "nft is not installed any more"
    if wrong:
        raise EngineError(f"The network of agents cannot be closed: {wrong}")


def connection_limit(port: int, per_client: int) -> str:
    """Return the rules that refuse a client's new connection to the TCP port while it has `per_client` connections.

    They replace earlier rules for the port. A client is an IPv4 address, or an IPv6 network of 64 bits.
    """
    chain = f"front_door_{port}"
    lines = [
        "add table inet moorage",
        f"add chain inet moorage {chain} {{ type filter hook input priority 0; policy accept; }}",
        f"flush chain inet moorage {chain}",
    ]
    for protocol, address in (("ip", "ip saddr"), ("ip6", "ip6 saddr & ffff:ffff:ffff:ffff::")):
        clients = f"{chain}_{protocol}"
        kind = "ipv4_addr" if protocol == "ip" else "ipv6_addr"
        made = f"set inet moorage {clients} {{ type {kind}; size {_CLIENTS_MAX}; flags dynamic; }}"
        # An existing set would keep its earlier limit, so it is replaced.
        lines += [f"add {made}", f"delete set inet moorage {clients}", f"add {made}"]
        counted = f"add @{clients} {{ {address} ct count over {per_client} }}"
        lines.append(f"add rule inet moorage {chain} tcp dport {port} ct state new {counted} reject with tcp reset")
    return "".join(f"{line}\n" for line in lines)


def limit_connections(port: int, per_client: int) -> bool:
    """Refuse a client's connections to the TCP port above `per_client`. Returns True if the machine
    accepts the rules.
    """
    program = _program()
    return program is not None and not _run(program, connection_limit(port, per_client))


def lift_connection_limit(port: int) -> None:
    """Undo `limit_connections`. Does nothing without a limit."""
    if program := _program():
        chain = f"front_door_{port}"
        sets = "".join(f"delete set inet moorage {chain}_{protocol}\n" for protocol in ("ip", "ip6"))
        _run(program, f"delete chain inet moorage {chain}\n{sets}")


def _program() -> str | None:
    return shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin:/usr/local/sbin")


def _run(program: str, rules: str) -> str:
    """Load the rules, and return nft's complaint, or an empty string."""
    try:
        done = subprocess.run(
            [program, "-f", "-"], input=rules, capture_output=True, text=True, timeout=_NFT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip() or f"exit code {done.returncode}")
