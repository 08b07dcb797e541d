"""What every error says of itself."""

import pytest

from delayd.errors import DelaydError, OtherClusterError


def test_an_error_without_a_code_of_its_own_cannot_be_raised() -> None:
    with pytest.raises(AssertionError, match="a code of its own"):
        raise DelaydError("something went wrong")


def test_an_error_says_what_happened_and_what_to_do() -> None:
    error = OtherClusterError("these are another cluster's", remedy="set --cluster")
    assert str(error) == "these are another cluster's (set --cluster)"
