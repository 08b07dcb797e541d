"""Certificates that end soon: those in files of the settings, and those that servers show."""

import re
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from delayd.commands.doctor.case import Means
from delayd.commands.doctor.finding import Finding, Severity
from delayd.commands.wording import local_time
from delayd.config.security import PEM
from replication.settings import DAY_MS

DAYS_LEAST: Final = 14
SECURE: Final = ("SSL", "SASL_SSL")
FILES: Final = ("kafka_ca_file", "kafka_cert_file", "etcd_ca_file", "etcd_cert_file")
TIME: Final = re.compile(rb"\x17\x0d(\d{12})Z|\x18\x0f(\d{14})Z")
"""A time in DER: UTCTime, with two digits of the year, or GeneralizedTime."""


def look_at_certificates(means: Means, nodes: dict[str, str]) -> Iterator[Finding]:
    """Yield the certificates that end soon. `nodes`: the address of each admin port, by name."""
    files = {name: getattr(means.security, name) for name in FILES}
    files["admin_cert_file"] = means.file.get("admin_cert_file")
    for name, file in files.items():
        for pem in PEM.findall(Path(file).read_text()) if file else ():
            yield from of(ssl.PEM_cert_to_DER_cert(pem), f"{name} ({file})", means)
    shown = {f"node {name}": admin for name, admin in nodes.items()}
    shown |= {f"etcd at {url}": url for url in means.etcd}
    if means.security.properties().get("security.protocol", "").upper() in SECURE:
        shown |= {f"the broker {at}": f"https://{at}" for at in means.bootstrap.split(",")}
    for whose, url in shown.items():
        der = _shown_at(url, means) if url.startswith("https:") else None
        if der is not None:
            yield from of(der, whose, means)


def of(der: bytes, whose: str, means: Means) -> Iterator[Finding]:
    """Yield whether a certificate, in DER, ends soon or has ended."""
    end_ms = ends_ms(der)
    left_ms = end_ms - means.clock.wall_ms()
    if left_ms < DAYS_LEAST * DAY_MS:
        severity = Severity.CRITICAL if left_ms <= 0 else Severity.WARNING
        what = (
            f"the certificate of {whose} {'ended' if left_ms <= 0 else 'ends'} {local_time(end_ms)}"
        )
        mend = f"replace the certificate of {whose}, and restart what uses it"
        yield Finding("certificate", severity, what, mend)


def ends_ms(der: bytes) -> int:
    """Return when a certificate in DER ends, Unix ms: its first two times are its validity."""
    [_, (short, long), *_] = TIME.findall(der)
    text = long.decode() or f"{'20' if short < b'50' else '19'}{short.decode()}"
    return int(datetime.strptime(text, "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp() * 1000)


def _shown_at(url: str, means: Means) -> bytes | None:
    """Return the certificate that a server shows, in DER, whoever signed it; None if there is none
    that answers, which is another concern's finding."""
    parts = urlsplit(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        plain = socket.create_connection((parts.hostname or "", parts.port or 0), _seconds(means))
        with plain, context.wrap_socket(plain, server_hostname=parts.hostname) as secure:
            return secure.getpeercert(binary_form=True)
    except OSError:
        return None


def _seconds(means: Means) -> float:
    return means.timeout_ms / 1000
