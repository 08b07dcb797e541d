"""Certificates of a test's own: an authority that is believed, one that is not, and their leaves.

Everything is a PEM file in one folder; keys are new in each run.
"""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from delayd.dev.ports import LOOPBACK

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate, its key, and both in one file."""

    cert: Path
    key: Path
    both: Path


class Authority:
    """Signs certificates for 127.0.0.1, which are good for servers and for clients."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        own = (
            self._begun(self._name, self._key, DAY, self._name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def leaf(
        self,
        name: str,
        *,
        lasts: datetime.timedelta = DAY,
        password: str | None = None,
        address: str = LOOPBACK,
        common_name: str | None = None,
    ) -> Leaf:
        """A new certificate, for so long from now; negative: it has expired. `common_name` may be
        empty, which etcd's gateway asks of its own clients."""
        key = ec.generate_private_key(ec.SECP256R1())
        said = name if common_name is None else common_name
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, said)] if said else [])
        where = x509.IPAddress(ipaddress.ip_address(address))
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        cert = (
            self._begun(subject, key, lasts, self._name)
            .add_extension(x509.SubjectAlternativeName([where]), critical=not said)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        cover: serialization.KeySerializationEncryption = (
            serialization.NoEncryption()
            if password is None
            else serialization.BestAvailableEncryption(password.encode())
        )
        pem = serialization.Encoding.PEM
        made = Leaf(*(self._folder / f"{name}{end}" for end in (".crt", ".key", ".pem")))
        made.cert.write_bytes(cert.public_bytes(pem))
        made.key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, cover))
        made.both.write_bytes(made.key.read_bytes() + made.cert.read_bytes())
        return made

    def _begun(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        lasts: datetime.timedelta,
        issuer: x509.Name,
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * DAY)
            .not_valid_after(now + lasts)
        )
