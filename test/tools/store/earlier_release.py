#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What release 0.2.0 left behind, and says, before this one: release_0.2.0/ was recorded with its program (revision dae1e666).

  folder.tar.gz   (in base64) a data folder whose server was killed: durable values in the index and in extents, a logged one, one that was
                  replaced, one that was erased, and a volatile one
  capture.json    what its commands and its server said to each other over TCP, one connection a command

usage: earlier_release.py OUT_FOLDER CASE        one function below for each case
"""
import base64
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile

import store_e2e
from store_e2e import Server, check, good, run

RECORDED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "release_0.2.0")
HEAD_BYTES = 64
LENGTHS = {"empty": 0, "small": 100, "medium": 20000, "large": 300000, "page": 4096, "replaced": 60000, "logged": 700}


def content(key):
    name = "replacement" if key == "replaced" else key
    return (f"{name} ".encode() * (LENGTHS[key] // len(name) + 1))[:LENGTHS[key]]


def folder():
    """This release opens the folder as it is: every value that was acknowledged is there, and stays beside new ones."""
    with tempfile.TemporaryDirectory() as top:
        with open(os.path.join(RECORDED, "folder.tar.gz.base64"), "rb") as file:
            subprocess.run(["tar", "-xz", "-C", top], input=base64.b64decode(file.read()), check=True)
        out = os.path.join(top, "out")

        def compare(server):
            for key in LENGTHS:
                good("get", "models", key, out, "--socket", server.socket, "--verify")
                with open(out, "rb") as file:
                    check(file.read() == content(key), key)
            for key in ("erased", "gone"):
                missing = run("get", "models", key, out, "--socket", server.socket)
                check(missing.code == 1 and "no key" in missing.err, key, missing.err)

        with Server(top) as server:
            compare(server)
            check(good("ls", "models", "--socket", server.socket).out.split() == sorted(LENGTHS), "the same keys, in order")
            good("put", "models", "new", out, "--socket", server.socket)
            server.stop()
        check("8 keys, 8 values" in good("check", "--data", server.data).out, good("check", "--data", server.data).out)
        with Server(top) as server:
            compare(server)


def frames(recorded):
    whole = base64.b64decode(recorded)
    while whole:
        key_bytes, tail_bytes = struct.unpack_from("<HH", whole, 20)
        size = HEAD_BYTES + key_bytes + tail_bytes + struct.unpack_from("<I", whole, 40)[0]
        yield whole[:size]
        whole = whole[size:]


def read_frame(wire):
    def read(count):
        out = b""
        while len(out) < count:
            more = wire.recv(count - len(out))
            check(more, "the server ended the connection")
            out += more
        return out
    head = read(HEAD_BYTES)
    key_bytes, tail_bytes = struct.unpack_from("<HH", head, 20)
    return head + read(key_bytes + tail_bytes + struct.unpack_from("<I", head, 40)[0])


def status_of(frame):
    return struct.unpack_from("<i", frame, 52)[0]


def body_of(frame):
    size = struct.unpack_from("<I", frame, 40)[0]
    return frame[len(frame) - size:]


def connect(server):
    host, port = server.tcp.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=60)


def client():
    """Each command of that release is answered as its own server answered it: outcome, bytes of values, lists."""
    with open(os.path.join(RECORDED, "capture.json"), encoding="utf-8") as file:
        commands = json.load(file)
    answers = 0
    with tempfile.TemporaryDirectory() as top, Server(top) as server:
        for command in commands:
            for recorded in command["connections"]:
                with connect(server) as wire:
                    for asked, answered in zip(frames(recorded["to_server"]), frames(recorded["to_client"]), strict=True):
                        wire.sendall(asked)
                        got = read_frame(wire)
                        what = (command["command"], asked[5])
                        check(got[4:6] == answered[4:6] and got[8:16] == answered[8:16], what, "another version, operation or request")
                        check(status_of(got) == status_of(answered), what, status_of(got), status_of(answered))
                        check(body_of(got) == body_of(answered), what, body_of(got)[:100])
                        answers += 1
        check(answers >= 20, answers)


def other_version():
    """A client of a protocol that this server does not speak is told so, in words, and others are served on."""
    with open(os.path.join(RECORDED, "capture.json"), encoding="utf-8") as file:
        hello = next(frames(json.load(file)[0]["connections"][0]["to_server"]))
    with tempfile.TemporaryDirectory() as top, Server(top) as server:
        for version in (0, 2, 255):
            with connect(server) as wire:
                wire.sendall(hello[:4] + bytes([version]) + hello[5:])
                text = read_frame(wire).decode("utf-8", "replace")
                check(f"version {version}, this end speaks 1" in text and "same release" in text, version, text)
                check(wire.recv(1) == b"", "the connection ends")
        good("pool", "create", "after", "--connect", server.tcp)


if __name__ == "__main__":
    store_e2e.OUT = sys.argv[1]
    globals()[sys.argv[2]]()
