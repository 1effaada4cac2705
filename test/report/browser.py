# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium through its DevTools pipe: opens a page, collects what its console says, takes pictures and prints.

A pipe (file descriptors 3 and 4, messages end with NUL) needs no port and no library.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_S = 200  # a machine may be busy with other tests


def find():
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    def __init__(self, program):
        self.profile = tempfile.mkdtemp(prefix="peerlane-browser-")
        to_read, self.out = os.pipe()
        self.inp, to_write = os.pipe()
        # The browser wants its ends as 3 and 4, which may be taken here: a shell moves them there.
        command = ["/bin/sh", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "sh", program, "--headless=new", "--no-sandbox", "--disable-gpu",
                   "--remote-debugging-pipe", "--hide-scrollbars", "--no-first-run", "--disable-extensions", "--disable-background-networking",
                   f"--user-data-dir={self.profile}", "about:blank"]
        with open(Path(self.profile) / "log", "wb") as log:
            self.process = subprocess.Popen(command, pass_fds=(to_read, to_write), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        os.close(to_read)
        os.close(to_write)
        self.buffer, self.number, self.events = b"", 0, []
        targets = self.call("Target.getTargets", session=None)["targetInfos"]
        page = next(t for t in targets if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", {"targetId": page["targetId"], "flatten": True}, session=None)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.out)  # the browser ends when its pipe does
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.inp)
        shutil.rmtree(self.profile, ignore_errors=True)

    def receive(self, deadline):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.inp], [], [], max(0, deadline - time.monotonic()))
            data = os.read(self.inp, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError("the browser does not answer: " + (Path(self.profile) / "log").read_text(errors="replace")[-2000:])
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, params=None, session=""):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params or {}}
        if session is not None:
            message["sessionId"] = session or self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self.receive(deadline)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, event):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = next((e for e in self.events if e.get("method") == event), None)
            if found:
                self.events.remove(found)
                return found
            self.events.append(self.receive(deadline))

    def evaluate(self, expression):
        """The value of a JavaScript expression; a promise is awaited."""
        answer = self.call("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def open(self, path, width, height, dark=False, phone=False):
        self.call("Emulation.setDeviceMetricsOverride",
                  {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone})
        self.call("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
        self.call("Page.navigate", {"url": Path(path).resolve().as_uri()})
        self.wait_for("Page.loadEventFired")

    def complaints(self):
        """Errors and warnings of the console, exceptions, and requests that left the page."""
        out = []
        for event in self.events:
            params, method = event.get("params", {}), event.get("method")
            if method == "Runtime.exceptionThrown":
                out.append(params["exceptionDetails"].get("exception", {}).get("description", params["exceptionDetails"]["text"]))
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                out.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                out.append(params["entry"]["text"])
            elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "data:", "about:")):
                out.append("the page asks for " + params["request"]["url"])
        return out

    def screenshot(self, path, whole=True, clip=None):
        params = {"format": "png", "captureBeyondViewport": whole}
        if clip:
            params["clip"] = dict(zip(("x", "y", "width", "height"), clip), scale=1)
        Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", params)["data"]))

    def print(self, path):
        data = self.call("Page.printToPDF", {"printBackground": True, "preferCSSPageSize": True, "paperWidth": 8.27, "paperHeight": 11.69})
        Path(path).write_bytes(base64.b64decode(data["data"]))
