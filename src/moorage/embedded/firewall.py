"""What agents may reach of the machine that they run on: rules of the kernel's packet filter, set by the program `nft`.

They hold for the operating-system users of agents, whichever installation these belong to, and for nobody else. Other
machines stay reachable, but for link-local addresses: clouds hand out credentials of the machine there.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Collection

from moorage.embedded.processes import ENGINE_UID
from moorage.embedded.users import AGENT_UIDS
from moorage.kernel.errors import EngineError

_NFT_S = 10.0
# From here on the kernel gives out ports by itself: an agent's own helper programs listen there.
_FIRST_OWN_PORT = 32_768
# The user of the engines lies among them.
_AGENTS = f"{{ {AGENT_UIDS[0]}-{ENGINE_UID - 1}, {ENGINE_UID + 1}-{AGENT_UIDS[-1]} }}"

# One transaction, that may be repeated. What was admitted stays.
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
"""


def admission(uid: int, ports: Collection[int]) -> str:
    """Rules that let one agents' user reach these TCP ports of the machine. May be repeated."""
    if uid not in AGENT_UIDS:
        raise ValueError(f"{uid} is no agents' user")
    elements = ", ".join(f"{uid} . {port}" for port in sorted(ports))
    return f"add element inet moorage admitted {{ {elements} }}\n" if elements else ""


def close() -> bool:
    """Set the rules; whether the machine has taken them. Needs root, nftables, and the right to change the network."""
    program = _program()
    return program is not None and not _run(program, RULES)


def admit(uid: int, ports: Collection[int]) -> None:
    """Let one agents' user reach these TCP ports of the machine, and set the rules again, in case somebody has removed them.

    Raises EngineError when the machine does not take the rules.
    """
    program = _program()
    wrong = _run(program, RULES + admission(uid, ports)) if program else "nft is not installed any more"
    if wrong:
        raise EngineError(f"The network of agents cannot be closed: {wrong}")


def _program() -> str | None:
    return shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin:/usr/local/sbin")


def _run(program: str, rules: str) -> str:
    """What nft complains of; nothing when all is well."""
    try:
        done = subprocess.run(
            [program, "-f", "-"], input=rules, capture_output=True, text=True, timeout=_NFT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip() or f"exit code {done.returncode}")
