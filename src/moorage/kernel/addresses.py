"""Addresses that callers name and we connect to: where a host name leads, and whether that is the public internet.

This server stands inside somebody's network. Whoever lets a caller choose an address resolves it first, refuses what
`blocked_range` names unless a setting allows it, and connects to the very address that was checked.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

Address = IPv4Address | IPv6Address
# The addresses of a host name. Raises OSError for a name that has none.
Resolve = Callable[[str], Awaitable[list[Address]]]

_PRIVATE = tuple(map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10")))
_NAT64 = ip_network("64:ff9b::/96")
_GLOBAL_V6 = ip_network("2000::/3")

# Threads of its own: graphs may have taken all others for as long as they like.
_lookups = ThreadPoolExecutor(4, "name-lookup")


async def resolve_name(host: str) -> list[Address]:
    found = await asyncio.get_running_loop().run_in_executor(
        _lookups, lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    )
    return [ip_address(address[0]) for *_, address in found]


def blocked_range(address: Address) -> str | None:
    """The range of an address that is not on the public internet; None for one that is."""
    address = _embedded(address)
    if address.is_loopback:
        return "loopback"
    if address.is_link_local:
        return "link-local"
    if any(address in network for network in _PRIVATE):
        return "private"
    public = address.is_global and not address.is_multicast
    return None if public and (address.version == 4 or address in _GLOBAL_V6) else "reserved"


def _embedded(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for, if it does."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
