"""Sizes and rates as people write them, and what is not one."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from caramel.errors import InputError
from caramel.util.units import format_size, format_time, parse_rate, parse_size


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("500mbit", 62.5e6),
        ("1Gbit/s", 125e6),
        ("10 Gbit/s", 1.25e9),
        ("62.5MB/s", 62.5e6),
        ("1e3 kbit", 125e3),
        (" 8 bit ", 1.0),
        ("1MiB", 2.0**20),
        ("100 mbps", 12.5e6),
    ],
)
def test_rates(text, rate):
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "fast",
        "500",
        "-1mbit",
        "+-1mbit",
        "1..5mbit",
        ".mbit",
        "mbit",
        "0mbit",
        "0.0GB/s",
        "nan",
        "nan mbit",
        "inf mbit",
        "1e400mbit",
        "1e-400mbit",
        "9" * 400 + "mbit",
        "1e999999999999mbit",
        "5 parsec",
        "1mbit 2mbit",
    ],
)
def test_bad_rates(text):
    with pytest.raises(InputError, match="rate|read"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("64", 64),
        ("64B", 64),
        ("16KiB", 2**14),
        ("4 MiB", 2**22),
        ("1GiB", 2**30),
        ("1.5kB", 1500),
        ("1MB", 10**6),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size
    assert isinstance(parse_size(text), int)


@pytest.mark.parametrize(
    "text",
    ["", " ", "big", "-1", "-1KiB", "1.5", "0.3 B", "1..5KiB", ".", "nan", "inf", "1e400", "9" * 400, "4 MiBs", "4 4"],
)
def test_bad_sizes(text):
    with pytest.raises(InputError, match="size|read"):
        parse_size(text)


@given(st.integers(0, 10**12))
@example(999)
@example(1000)
@example(1023)
@example(1023 * 2**20)
@example(2**20 - 1)
def test_sizes_for_people(size):
    """Three digits are shown, and what is shown can be read again."""
    text = format_size(size)
    assert "e+" not in text
    number, unit = text.split()
    assert float(number) * {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit] == pytest.approx(size, rel=0.006)


@given(st.floats(1e-9, 999))
@example(999.6e-6)
@example(0.9996)
@example(1e-3)
@example(1.0)
def test_times_for_people(time):
    text = format_time(time)
    assert "e+" not in text
    number, unit = text.split()
    assert float(number) * {"us": 1e-6, "ms": 1e-3, "s": 1}[unit] == pytest.approx(time, rel=0.006)
