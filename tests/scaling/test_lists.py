"""Lists of numbers of workers."""

import pytest

from caramel.errors import InputError
from caramel.scaling.lists import parse_counts


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("4", [4]),
        (" 1 , 3,5 ", [1, 3, 5]),
        ("2,4,...,1024", [2**n for n in range(1, 11)]),
        ("1,2,3,...,6", [1, 2, 3, 4, 5, 6]),
        ("3,9,...,81,100,200,...,400", [3, 9, 27, 81, 100, 200, 400]),
        ("100,300,...,900", [100, 300, 900]),  # times three goes before two hundred more
        ("100,300,...,700", [100, 300, 500, 700]),
        ("2,4,...,4", None),
        ("2,4,...,8", [2, 4, 8]),
        ("4,6,...,8", [4, 6, 8]),
    ],
)
def test_good(text, numbers):
    if numbers is None:
        with pytest.raises(InputError):
            parse_counts(text)
    else:
        assert parse_counts(text) == numbers


@pytest.mark.parametrize(
    "text",
    [
        "",
        "two",
        "2,4,...",
        "...,4",
        "2,...,8",
        "2,4,...,...,8",
        "4,2",
        "2,2",
        "2,4,...,9",
        "-1",
        "1.5",
        "0,2,...,8",
        "2;4",
    ],
)
def test_bad(text):
    with pytest.raises(InputError, match="read|ascend|come to"):
        parse_counts(text)
