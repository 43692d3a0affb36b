"""Certificates for a test, each signed by itself or by another one."""

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Issued:
    """A certificate and its key, in memory and in files."""

    cert: Path
    key: Path
    certificate: x509.Certificate
    secret: ec.EllipticCurvePrivateKey

    @property
    def serial(self):
        return self.certificate.serial_number


_USAGE = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    crl_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


def issue(folder, name, signer=None, password=None):
    """A certificate for 127.0.0.1, which can sign others."""
    secret = ec.generate_private_key(ec.SECP256R1())
    public = secret.public_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer.certificate.subject if signer else subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        # from 3.13 on, Python checks that these are there
        .add_extension(_USAGE, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(
                signer.secret.public_key() if signer else public
            ),
            critical=False,
        )
        .sign(signer.secret if signer else secret, hashes.SHA256())
    )
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    pem = serialization.Encoding.PEM
    locked = serialization.BestAvailableEncryption(password) if password else None
    key.write_bytes(
        secret.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, locked or serialization.NoEncryption()
        )
    )
    cert.write_bytes(certificate.public_bytes(pem))
    return Issued(cert, key, certificate, secret)
