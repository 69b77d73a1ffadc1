"""A signature covers everything that `load` goes by, and `trust` refuses whatever is not so."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from package_samples import save_model, source

from causal_attn.errors import CausalAttnError, CertificateError, PackageError, UsageError
from causal_attn.package import read_package, write_package
from causal_attn.package.signature import private_key, public_key, sign, signature_path
from causal_attn.runtime import Accept, load


def pem(key: Ed25519PrivateKey, password: bytes | None = None) -> bytes:
    hidden = NoEncryption() if password is None else BestAvailableEncryption(password)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden)


def public_pem(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


KEY, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
TRUST = public_pem(KEY)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A signed package of one variant, with external data and a tokenizer beside it."""
    model = save_model(tmp_path / "source" / "model.onnx", data="weights.bin")
    root = tmp_path / "package"
    write_package(path=root, name="m", variants=[source(model)])
    folder = root / "m" / "cpu"
    (folder / "tokenizer.json").write_text("{}")
    (variant,) = read_package(root).variants
    assert sign(variant, KEY) == signature_path(variant) == folder / "model.onnx.sig"
    return root


def folder_of(package: Path) -> Path:
    return package / "m" / "cpu"


def test_what_was_signed_loads(package: Path, tmp_path: Path) -> None:
    path = tmp_path / "key.pub.pem"
    path.write_bytes(TRUST)
    for trust in (TRUST, path, str(path)):
        load(package, trust=trust).close()
    load(package, trust=TRUST, accept=Accept.UNVERIFIED).close()
    # The same bytes alone are what was signed too.
    load(folder_of(package) / "model.onnx", trust=TRUST).close()


def edited_json(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def edit(package: Path, what: str) -> None:
    folder, manifest = folder_of(package), package / "manifest.json"
    if what == "contract":
        (folder / "contract.json").write_text((folder / "contract.json").read_text() + "\n")
    elif what == "certificate":
        edited_json(folder / "certificate.json", lambda values: values.update(versions={}))
    elif what == "weights":
        (folder / "weights.bin").write_bytes(b"\0\0\0\x40")
    elif what == "model":
        model = folder / "model.onnx"
        model.write_bytes(model.read_bytes().replace(b"Add", b"Sub"))
    elif what == "companion":
        (folder / "tokenizer.json").write_text('{"other": 1}')
    elif what == "new companion":
        (folder / "chat_template.jinja").write_text("{{ 1 }}")
    elif what == "no companion":
        (folder / "tokenizer.json").unlink()
    elif what == "options":
        text = manifest.read_text().replace(
            '"session_options": {}',
            '"session_options": {"session.disable_prepacking": "1"}',
        )
        assert text != manifest.read_text()
        manifest.write_text(text)
    elif what == "signature":
        path = folder / "model.onnx.sig"
        values = json.loads(path.read_text())
        first = "0" if values["signature"][0] != "0" else "1"
        path.write_text(json.dumps(values | {"signature": first + values["signature"][1:]}))


@pytest.mark.parametrize(
    "what",
    [
        "contract",
        "certificate",
        "weights",
        "model",
        "companion",
        "new companion",
        "no companion",
        "options",
        "signature",
    ],
)
@pytest.mark.parametrize("accept", list(Accept))
def test_whatever_was_changed_is_refused(package: Path, what: str, accept: Accept) -> None:
    edit(package, what)
    with pytest.raises(CertificateError, match="must be as it was signed, got another"):
        load(package, trust=TRUST, accept=accept)


def test_what_is_not_signed_is_refused(package: Path) -> None:
    (folder_of(package) / "model.onnx.sig").unlink()
    load(package).close()
    with pytest.raises(CertificateError, match=r"got no signature: .* is not there\. Sign it"):
        load(package, trust=TRUST)


def test_what_another_key_signed_is_refused(package: Path) -> None:
    (variant,) = read_package(package).variants
    sign(variant, OTHER)
    signers = [key.public_key().public_bytes_raw().hex() for key in (KEY, OTHER)]
    with pytest.raises(CertificateError, match=f"{signers[0]}, got a signature by {signers[1]}"):
        load(package, trust=TRUST)
    # A forger who writes the trusted key's name into the file has not signed with it.
    edited_json(
        folder_of(package) / "model.onnx.sig", lambda values: values.update(public_key=signers[0])
    )
    with pytest.raises(CertificateError, match="must be as it was signed"):
        load(package, trust=TRUST)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"algorithm": "none"}, "`algorithm` must be 'ed25519'"),
        ({"signature": "ab"}, "`signature` must be 128 hex digits"),
        ({"signature": 3}, "`signature` must be 128 hex digits"),
        ({"public_key": "zz" * 32}, "`public_key` must be 64 hex digits"),
        ({"schema": "other/1"}, "schema"),
        ({"more": 1}, "exactly the fields"),
    ],
)
def test_a_signature_that_is_none(package: Path, change: dict[str, object], words: str) -> None:
    edited_json(folder_of(package) / "model.onnx.sig", lambda values: values.update(change))
    with pytest.raises(PackageError, match=words):
        load(package, trust=TRUST)


def test_a_signature_of_one_variant_is_none_of_another(tmp_path: Path) -> None:
    names = []
    for weight in (1.0, 2.0):
        model = save_model(tmp_path / str(weight) / "model.onnx", weight=weight)
        write_package(path=tmp_path / f"package{weight}", name="m", variants=[source(model)])
        names.append(tmp_path / f"package{weight}")
    (variant,) = read_package(names[0]).variants
    text = sign(variant, KEY).read_text()
    (folder_of(names[1]) / "model.onnx.sig").write_text(text)
    load(names[0], trust=TRUST).close()
    with pytest.raises(CertificateError, match="must be as it was signed"):
        load(names[1], trust=TRUST)


def test_nothing_is_signed_that_was_not_checked(package: Path) -> None:
    edit(package, "weights")
    (variant,) = read_package(package).variants
    with pytest.raises(CertificateError, match="was changed after it was checked"):
        sign(variant, KEY)


def test_a_signed_package_is_replaced_by_the_next_export(package: Path, tmp_path: Path) -> None:
    model = save_model(tmp_path / "next" / "model.onnx", weight=3.0)
    write_package(path=package, name="m", variants=[source(model)])
    assert not (folder_of(package) / "model.onnx.sig").exists()


@pytest.mark.parametrize(
    ("trust", "words"),
    [
        (b"", "must be the PEM of an ed25519 public key"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "must be the PEM of"),
        (pem(KEY), "must be the PEM of an ed25519 public key"),
        (
            X25519PrivateKey.generate()
            .public_key()
            .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
            "must be an ed25519 public key, got X25519PublicKey",
        ),
        ("nowhere.pem", r"`trust` must be a readable file, got 'nowhere\.pem'"),
        ("a\0b", "`trust` must be a readable file"),
        (".", "`trust` must be a regular file"),
        (3, "`trust` must be the path of a PEM file, or its content as bytes, got 3"),
    ],
)
def test_a_key_that_is_none(package: Path, trust: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load(package, trust=trust)


def test_a_private_key_has_no_password_and_is_of_the_right_kind() -> None:
    assert private_key(pem(KEY)).public_key() == public_key(TRUST)
    with pytest.raises(
        UsageError, match=r"`key` must be the PEM of .* private key without a pass"
    ):
        private_key(pem(KEY, b"secret"))
    with pytest.raises(UsageError, match="`key` must be the PEM"):
        private_key(TRUST)


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", "from causal_attn.cli import main; main()", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_the_command_signs_and_says_who(package: Path, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes(pem(OTHER))
    done = command("sign", package, "--key", key, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["public_key"] == OTHER.public_key().public_bytes_raw().hex()
    assert said["signatures"] == [str(folder_of(package) / "model.onnx.sig")]
    load(package, trust=public_pem(OTHER)).close()


def test_the_command_refuses_in_words(package: Path, tmp_path: Path) -> None:
    done = command("sign", package, "--key", tmp_path / "none.pem")
    assert done.returncode == 2
    assert "`--key` must be a readable file" in done.stderr
    key = tmp_path / "key.pem"
    key.write_bytes(pem(KEY))
    edit(package, "weights")
    done = command("sign", package, "--key", key)
    assert done.returncode == 1
    assert "changed after it was checked" in done.stderr


def test_without_the_extra_the_error_is_its_installation(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(CausalAttnError, match=r"pip install 'causal-attn\[sign\]'"):
        load(package, trust=TRUST)
    load(package).close()
