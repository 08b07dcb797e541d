"""delayd.audit.reading.murmur2: many keys at once, as one by one."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from delayd.audit.reading.batches import murmur2_of_keys
from delayd.audit.reading.murmur2 import MATRIX_BYTES_MAX, murmur2_of
from delayd.bus.murmur2 import murmur2

KEYS = st.lists(
    st.one_of(st.none(), st.binary(max_size=40), st.sampled_from([b"", b"abc", b"key-1", b"\xff"])),
    max_size=60,
)


@given(KEYS, st.integers(0, 5))
def test_each_key_has_the_hash_that_java_gives_it(keys: list[bytes | None], skipped: int) -> None:
    array = pa.array(keys, pa.binary())[skipped:]

    hashes = murmur2_of_keys(array).to_pylist()

    wanted = [None if key is None else murmur2(key) & 0x7FFFFFFF for key in keys[skipped:]]
    assert hashes == wanted


@given(st.integers(0, 13), st.integers(8, 40))
def test_keys_of_one_length_are_hashed_together(length: int, count: int) -> None:
    keys = [bytes((7 * n + at * n) % 256 for at in range(length)) for n in range(count)]

    hashes = murmur2_of_keys(pa.array(keys, pa.binary())).to_pylist()

    assert hashes == [murmur2(key) & 0x7FFFFFFF for key in keys]


def test_long_keys_do_not_take_more_memory_than_a_matrix() -> None:
    keys = [bytes([n]) * (MATRIX_BYTES_MAX // 20 + 1) for n in range(24)]
    data = np.frombuffer(b"".join(keys), np.uint8)
    lengths = np.full(24, len(keys[0]), np.int64)

    hashes = murmur2_of(data, np.arange(24) * len(keys[0]), lengths)

    assert hashes.tolist() == [murmur2(key) & 0x7FFFFFFF for key in keys]
