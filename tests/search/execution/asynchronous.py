"""Run tests that are coroutines."""

import asyncio
import functools


def asynchronous(test):
    @functools.wraps(test)
    def run(*arguments, **fixtures):
        asyncio.run(test(*arguments, **fixtures))

    return run
