"""TLS, with certificates made by openssl."""

import pathlib
import socket
import subprocess

import pytest

import clad
from conftest import free_port, until

EC = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=test"]


def openssl(folder: pathlib.Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def issue(folder: pathlib.Path, name: str, subject: str) -> None:
    (folder / f"{name}.ext").write_text(f"subjectAltName={subject}\n")
    openssl(folder, "req", *EC, "-keyout", f"{name}.key", "-out", f"{name}.csr")
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-extfile", f"{name}.ext", "-out", f"{name}.crt")


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_a_record_comes_by_the_name_of_its_sender(stopped, monkeypatch):
    folder, port = stopped.folder, free_port()
    for name in ("ca", "other"):
        openssl(folder, "req", "-x509", *EC, "-keyout", f"{name}.key", "-out", f"{name}.crt")
    issue(folder, "server", "IP:127.0.0.1")
    issue(folder, "client", "URI:spiffe://prod/shop")
    stopped.start(
        tls__cert="server.crt", tls__key="server.key", tls__client_ca="ca.crt", tls__require_client_cert="true",
        ingest__tcp__listen=f"127.0.0.1:{port}", ingest__tcp__tls="true", ingest__tcp__allow_read="true",
    )
    at = f"tcp+tls://127.0.0.1:{port}"
    own = f"cert={folder}/client.crt&key={folder}/client.key"
    address = f"{at}?ca={folder}/ca.crt&{own}"
    with clad.Producer(address, component="shop") as producer:
        assert producer.append("paid", level="durable").wait().level == "durable"
    stopped.kill()
    stopped.start()
    with clad.Producer(stopped.server) as producer:
        producer.append("local")
    until(lambda: listens(port))
    with clad.Reader(address) as reader:
        assert [(record.body, record.identity) for record in reader] == [("paid", "spiffe://prod/shop"), ("local", None)]

    for settings, words in (
        (f"ca={folder}/other.crt&{own}", "no authority that is trusted here"),
        (f"ca={folder}/ca.crt", "the daemon refuses this client"),
        (f"ca={folder}/missing", "No such file"),
    ):
        with pytest.raises(clad.ConnectError, match=words):
            clad.Reader(f"{at}?{settings}")
    with pytest.raises(clad.AddressError):
        clad.Producer(f"{at}?cipher=x")

    monkeypatch.setenv("CLAD_TLS_CA", f"{folder}/ca.crt")
    monkeypatch.setenv("CLAD_TLS_CERT", f"{folder}/client.crt")
    monkeypatch.setenv("CLAD_TLS_KEY", f"{folder}/client.key")
    with clad.Producer(at) as producer:
        producer.append("by the environment").wait()
