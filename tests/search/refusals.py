"""Reads what a call is refused with."""

import pytest

from searchlight.search.errors import UsageError


def problems_of(call, *arguments, **options):
    """Return the lines of the UsageError that `call` raises."""
    with pytest.raises(UsageError) as caught:
        call(*arguments, **options)
    return list(caught.value.problems)
