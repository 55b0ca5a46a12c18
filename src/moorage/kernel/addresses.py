"""Addresses that callers name and this server connects to: name resolution, and the check for the public internet.

This server may stand inside a private network. Code that lets a caller choose an address resolves it first, refuses it
if `blocked_range` names a range and no setting allows that, and connects to the very address that was checked.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

Address = IPv4Address | IPv6Address
# Returns the addresses of a host name. Raises OSError if it has none.
Resolve = Callable[[str], Awaitable[list[Address]]]

_PRIVATE = tuple(map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10")))
_NAT64 = ip_network("64:ff9b::/96")
_GLOBAL_V6 = ip_network("2000::/3")

# A thread pool of its own: graphs may occupy the default one for any time.
_lookups = ThreadPoolExecutor(4, "name-lookup")


async def resolve_name(host: str) -> list[Address]:
    found = await asyncio.get_running_loop().run_in_executor(
        _lookups, lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    )
    return [ip_address(address[0]) for *_, address in found]


def blocked_range(address: Address) -> str | None:
    """Return the range of an address that is not on the public internet; None for a public address."""
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
    """Return the IPv4 address that an IPv6 address embeds, if any."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
