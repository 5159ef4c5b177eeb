"""A real browser for the report: how it is found and opened, and a page with what it asked for and complained about."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def open_browser() -> Iterator[Any]:
    """Chromium, or a skipped test where there is none; on CI there must be one."""
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if executable is None:
        reason = "no browser found: install chromium or google-chrome and put it on the PATH"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield chromium
        chromium.close()


class Visit:
    """A page opened from disk without a network, with what it asked for and complained about."""

    def __init__(self, browser: Any, path: Path, address: str = "", **options: Any) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page = browser.new_page(offline=True, **options)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.page.goto(path.resolve().as_uri() + address)
        self.page.wait_for_selector("#explore[data-drawn]")
        # The table of heads is filled after the explorer.
        self.page.wait_for_selector("#heads [role=status]:not(:empty)")

    def column(self, table: str, index: int) -> list[str]:
        """Texts of one column of a table, without the notes under them."""
        script = (
            """(table, index) => [...table.tBodies[0].rows].map((row) => row.cells[index].firstChild.textContent)"""
        )
        return self.page.locator(table).evaluate(script, index)

    def sort(self, table: str, index: int) -> str:
        """Click on a column's header and return its `aria-sort`."""
        header = self.page.locator(f"{table} th").nth(index)
        header.locator("button").click()
        return header.get_attribute("aria-sort")
