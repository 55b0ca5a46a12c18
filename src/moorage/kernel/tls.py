"""Certificates that a server presents for a name."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from datetime import datetime

from cryptography import x509


async def shown_until(host: str, port: int, name: str, timeout_s: float) -> datetime | None:
    """Return the expiry of the certificate that the server presents for `name`, trusted or not.

    Returns None without a certificate, for one of another name, or without an answer in time.
    """
    with suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port, ssl=_trusting_all(), server_hostname=name)
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
        found = x509.load_der_x509_certificate(certificate)
        return found.not_valid_after_utc if _covers(found, name) else None
    return None


def _trusting_all() -> ssl.SSLContext:
    """Return a context that trusts any certificate. Only the certificate is read, and nothing is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _covers(certificate: x509.Certificate, name: str) -> bool:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    names = {each.lower() for each in found.get_values_for_type(x509.DNSName)}
    return name in names or f"*.{name.partition('.')[2]}" in names
