"""One browser for the tests of a module."""

import pytest

from helpers.browser import open_browser


@pytest.fixture(scope="module")
def browser():
    yield from open_browser()
