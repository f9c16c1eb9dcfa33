"""`python tools/docs/screenshots.py` makes the screenshots in docs/pictures, with Chromium and playwright.

It starts a server of the demo model, asks two questions on the chat page, and looks at the last request
on the page of the virtual NPU.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
SIZE = {"width": 1000, "height": 640}
QUESTIONS = ("What is the capital of France?", "What is a memtile?")
MAX_BYTES = 200_000


def wait_until_loaded(address: str) -> None:
    """Until /health is 200: programs may have to be compiled."""
    for _ in range(600):
        with suppress(OSError), urlopen(f"{address}/health"):
            return
        time.sleep(1)
    raise TimeoutError(f"{address} was not ready in 600 s")


@contextmanager
def server() -> Iterator[str]:
    """The address of a server of the demo model."""
    command = [sys.executable, "-m", "aerie", "serve", "--port", "0", "--warm"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        found = re.search(r"http://\S+?:\d+", process.stdout.readline())
        assert found
        try:
            wait_until_loaded(found[0])
            yield found[0]
        finally:
            process.terminate()


def chat(page: Any, address: str) -> None:
    page.goto(address)
    for number, question in enumerate(QUESTIONS, 1):
        box = page.get_by_role("textbox").last
        box.fill(question)
        box.press("Enter")
        page.get_by_text(re.compile("tokens/s")).nth(number - 1).wait_for(timeout=300_000)
    page.screenshot(path=FOLDER / "chat.png")


def npu(page: Any, address: str) -> None:
    """The tiles, coloured by the bytes that the last request moved; each program runs once for that."""
    page.goto(f"{address}/npu")
    page.locator("#count").click()
    for _ in range(900):
        if not page.locator("#runs tr", has_text="_").filter(has_not_text="iB").count():
            break
        page.wait_for_timeout(1000)
    page.locator("#h-array").evaluate("title => title.scrollIntoView()")
    page.screenshot(path=FOLDER / "npu.png")


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with server() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        chat(page, address)
        npu(page, address)
        browser.close()
    for path in FOLDER.glob("*.png"):
        assert path.stat().st_size < MAX_BYTES, f"{path} has {path.stat().st_size} bytes"


if __name__ == "__main__":
    main()
