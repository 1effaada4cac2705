# SPDX-License-Identifier: Apache-2.0
"""peerlane.store against a server of its own: values of GPU tensors, conditions, searches, refusals."""

import errno
import select
import subprocess

import numpy as np
import peerlane
import pytest
from peerlane import _native, testing


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A socket at which a store serves."""
    if not (_native.FOLDER / "libpeerlane_store.so.0").exists():
        pytest.skip("libpeerlane_store.so.0 was not built")
    data = tmp_path_factory.mktemp("store")
    process = subprocess.Popen([_native.program(), "store", "serve", "--data", data, "--listen", "none", "--arena", "64M", "--chunk",
                                "64M"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 30)  # its first line comes when it serves
    assert ready, "the server says nothing"
    yield str(data / "store.sock")
    process.terminate()
    process.wait(30)


def test_values(server, numbers):
    x, y = testing.array(numbers), testing.zeros(numbers.shape)
    with peerlane.store.open(server) as store:
        pool = store.create_pool("values", durability="logged")
        put = pool.put("layer0", x)
        assert (put.value_bytes, put.durability) == (192, "logged") and put.version > 0 and put.path
        got = pool.get("layer0", y)
        assert np.array_equal(y.get(), numbers) and got.version == put.version and got.moved_bytes == 192
        part = np.zeros(100, np.float32)
        assert pool.get(b"layer0", part, offset=4, verify=True).moved_bytes == 188
        assert np.array_equal(part[:47], numbers.ravel()[1:]) and not part[47:].any()
        pool.put("layer1", b"bytes", durability="volatile")
        assert pool.keys() == [b"layer0", b"layer1"] and pool.keys("layer1") == [b"layer1"]
        assert pool.stat("layer1").value_bytes == 5
        pool.erase("layer1")
        pool.sync()
        assert store.open_pool("values").keys() == [b"layer0"]
        refusals(store, pool, x)
        store.delete_pool("values")
    store.close()
    with pytest.raises(ValueError, match="closed"):
        pool.keys()


def refusals(store, pool, x):
    for number, call in [(errno.EEXIST, lambda: pool.put("layer0", x, condition="absent")),
                         (errno.ENOENT, lambda: pool.put("other", x, condition="present")),
                         (errno.ENOENT, lambda: pool.get("other", x)), (errno.ENXIO, lambda: store.open_pool("nowhere"))]:
        with pytest.raises(peerlane.Error) as told:
            call()
        assert told.value.errno == number and told.value.strerror
    with pytest.raises(ValueError, match="gaps"):
        pool.put("layer0", x[:, 1])
    with pytest.raises(ValueError, match="read-only"):
        pool.get("layer0", b"1234")
    with pytest.raises(KeyError):
        pool.put("layer0", x, durability="eternal")


def test_nobody_serves(tmp_path):
    with pytest.raises(peerlane.Error) as told:
        peerlane.store.open(str(tmp_path / "none.sock"))
    assert told.value.errno in (errno.ENOENT, errno.ECONNREFUSED)
