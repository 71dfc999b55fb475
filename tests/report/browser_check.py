#!/usr/bin/env python3
"""Opens a report in a headless Chromium and looks at it: at the width of a phone and of a desk, light and dark, and printed.

Fails on a console error, a request to a network, a blank drawing or picture, a page wider than the screen, colours that do
not follow the theme. Talks to the browser by the DevTools protocol over its pipe; needs nothing but Python.

usage: browser_check.py REPORT.html [--browser PROGRAM] [--keep FOLDER] [--canvases N]
exit status: 0 all well, 1 something is wrong, 77 no browser here.
"""

import argparse
import base64
import fcntl
import json
import os
import pathlib
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
VIEWS = (
    ("phone-light", 390, 844, True, "light"),
    ("phone-dark", 390, 844, True, "dark"),
    ("desk-light", 1280, 900, False, "light"),
    ("desk-dark", 1280, 900, False, "dark"),
)
ALLOWED = ("file:", "data:", "blob:", "about:")

# Colours of a canvas, counted on a coarse grid; 1 means blank.
COUNT_COLOURS = """(() => [...document.querySelectorAll('canvas')].map((canvas) => {
  const { width, height } = canvas;
  if (!width || !height) return 0;
  const data = canvas.getContext('2d').getImageData(0, 0, width, height).data;
  const seen = new Set();
  for (let i = 0; i + 3 < data.length; i += 4 * 7) seen.add((data[i] << 24) ^ (data[i + 1] << 16) ^ (data[i + 2] << 8) ^ data[i + 3]);
  return seen.size;
}))()"""


class Browser:
    """A browser process and one page in it."""

    def __init__(self, program, profile):
        to_browser, self.output = os.pipe()
        self.input, from_browser = os.pipe()
        # The browser reads commands from descriptor 3 and writes answers to 4; the shell (which knows one digit) puts the pipes there.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 5) for fd in (to_browser, from_browser)]
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", f'exec "$0" "$@" 3<&{high[0]} 4>&{high[1]}', program,
             "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--disable-extensions", "--disable-background-networking", "--no-first-run", f"--user-data-dir={profile}",
             "--remote-debugging-pipe", "about:blank"],
            pass_fds=high, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for fd in (to_browser, from_browser, *high):
            os.close(fd)
        self.buffer = b""
        self.next_id = 0
        self.session = None
        self.problems = []
        self.requests = []
        self.loaded = False

    def read(self, deadline):
        while b"\0" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.input], [], [], left)[0]:
                raise TimeoutError("the browser did not answer")
            chunk = os.read(self.input, 1 << 20)
            if not chunk:
                raise RuntimeError("the browser ended")
            self.buffer += chunk
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def note(self, message):
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details.get("text"))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.loadEventFired":
            self.loaded = True

    def call(self, method, timeout=60, **params):
        self.next_id += 1
        message = {"id": self.next_id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.output, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + timeout
        while True:
            answer = self.read(deadline)
            if answer.get("id") == self.next_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", "exception"))
        return answer["result"].get("value")

    def open_page(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def load(self, url):
        self.loaded = False
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + 60
        while not self.loaded:
            self.note(self.read(deadline))

    def close(self):
        try:
            self.session = None
            self.call("Browser.close", timeout=10)
        except (RuntimeError, TimeoutError, OSError):
            self.process.kill()
        self.process.wait()


def png_colours(png):
    """How many different byte values the picture's rows have: a blank one has a few."""
    data, at = b"", 8
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at:at + 8])
        if kind == b"IDAT":
            data += png[at + 8:at + 8 + length]
        at += length + 12
    return len(set(zlib.decompress(data)))


def check(browser, url, keep, canvases):
    faults = []

    def expect(condition, text):
        if not condition:
            faults.append(text)

    for name, width, height, mobile, scheme in VIEWS:
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if mobile else 1,
                     mobile=mobile)
        browser.call("Emulation.setEmulatedMedia", media="screen",
                     features=[{"name": "prefers-color-scheme", "value": scheme}])
        browser.load(url)
        browser.evaluate("drawEverything()")
        time.sleep(0.3)
        colours = browser.evaluate(COUNT_COLOURS)
        expect(len(colours) == canvases if canvases else len(colours) > 0, f"{name}: {len(colours)} drawings")
        expect(all(n >= 3 for n in colours), f"{name}: a drawing is blank: {colours}")
        wide = browser.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        expect(wide <= 0, f"{name}: the page is {wide} pixels wider than the screen")
        background = browser.evaluate(
            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0)")
        expect((background < 200) == (scheme == "dark"), f"{name}: the background's brightness is {background}")
        shot = base64.b64decode(browser.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"])
        expect(png_colours(shot) > 30, f"{name}: the picture is blank")
        if keep:
            (keep / f"{name}.png").write_bytes(shot)
    browser.call("Emulation.clearDeviceMetricsOverride")
    browser.call("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    pdf = base64.b64decode(browser.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"])
    expect(pdf.startswith(b"%PDF") and len(pdf) > 5000, "print: no pages")
    if keep:
        (keep / "print.pdf").write_bytes(pdf)
    away = [r for r in browser.requests if not r.startswith(ALLOWED)]
    expect(not away, f"requests to a network: {away[:3]}")
    expect(not browser.problems, f"console: {browser.problems[:3]}")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--browser", help="program to use")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the pictures")
    parser.add_argument("--canvases", type=int, default=0, help="how many drawings the page must have")
    arguments = parser.parse_args()
    program = arguments.browser or next(filter(None, map(shutil.which, BROWSERS)), None)
    if not program:
        print("no browser found")
        return 77
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        try:
            browser.open_page()
            faults = check(browser, arguments.report.resolve().as_uri(), arguments.keep, arguments.canvases)
        finally:
            browser.close()
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
