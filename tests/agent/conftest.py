import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest


@pytest.fixture
async def own_executor():
    """Where the clients of models look up their platform; else the loop keeps the thread."""
    with ThreadPoolExecutor(1) as executor:
        asyncio.get_running_loop().set_default_executor(executor)
        yield
