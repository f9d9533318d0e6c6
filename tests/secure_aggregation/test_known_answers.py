"""Published test vectors: the primitives are the ones that the documents name."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from distro_fed.errors import Refused
from distro_fed.secure_aggregation.identity import Identity
from distro_fed.secure_aggregation.key_agreement import derive, exchange, private_key
from distro_fed.secure_aggregation.roster import Member, Roster


def h(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


@pytest.mark.parametrize(
    ("scalar", "point", "shared"),
    [
        (
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (
            "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
            "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
            "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        ),
    ],
)
def test_x25519_rfc_7748_section_5_2(scalar: str, point: str, shared: str) -> None:
    assert exchange(private_key(h(scalar)), h(point)) == h(shared)


def test_x25519_rfc_7748_section_5_2_iterated() -> None:
    scalar = point = b"\x09" + bytes(31)
    for step in range(1000):
        scalar, point = exchange(private_key(scalar), point), scalar
        if step == 0:
            assert scalar == h("422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079")
    assert scalar == h("684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51")


@pytest.mark.parametrize(
    "point", ["00" * 32, "01" + "00" * 31, "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"]
)
def test_points_of_low_order_are_refused(point: str) -> None:
    with pytest.raises(Refused, match="bad-key"):
        exchange(private_key(b"k" * 32), h(point))


def test_hkdf_rfc_5869_appendix_a_1() -> None:
    okm = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    salt, info = h("000102030405060708090a0b0c"), h("f0f1f2f3f4f5f6f7f8f9")
    assert derive(b"\x0b" * 22, salt, info, 42) == h(okm)


def test_hkdf_rfc_5869_appendix_a_3_without_salt_and_info() -> None:
    okm = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    assert derive(b"\x0b" * 22, b"", b"", 42) == h(okm)
    assert HKDF(hashes.SHA256(), 42, None, None).derive(b"\x0b" * 22) == h(okm)


def test_aes_256_ctr_sp_800_38a_f_5_5() -> None:
    key = h("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    plain = h(
        "6bc1bee22e409f96e93d7e117393172a ae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52ef f69f2445df4f9b17ad2b417be66c3710"
    )
    cipher = h(
        "601ec313775789a5b7a7f504bbf3d228 f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988d dfc9c58db67aada613c2dd08457941a6"
    )
    encryptor = Cipher(algorithms.AES256(key), modes.CTR(h("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"))).encryptor()
    out = bytearray(len(plain))
    # in pieces, as masks are made
    for start in range(0, len(plain), 16):
        encryptor.update_into(plain[start : start + 16], memoryview(out)[start:])
    assert bytes(out) == cipher


@pytest.mark.parametrize(
    ("secret", "public", "message", "signature"),
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ),
    ],
)
def test_ed25519_rfc_8032_section_7_1(secret: str, public: str, message: str, signature: str) -> None:
    identity = Identity("member", h(secret))
    assert identity.public == h(public)
    assert identity.sign(h(message)) == h(signature)
    roster = Roster("f", (Member("member", h(public)),))
    assert roster.verify(0, h(signature), h(message))
    assert not roster.verify(0, h(signature), h(message) + b"x")
