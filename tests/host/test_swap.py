"""Swap areas and zram."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from boards import board
from tidegate.host.swap import parse_mm_stat, parse_swaps, read_swaps


def test_zram_says_what_it_costs() -> None:
    (area,) = read_swaps(board("x86_16g_zram100_panic").root)
    assert (area.path, area.kind, area.priority, area.is_zram) == ("/dev/zram0", "partition", 100, True)
    assert (area.size >> 10, area.used >> 10, area.ram_used) == (16213500, 9321472, 3412033536)


def test_a_swap_file() -> None:
    (area,) = read_swaps(board("pi5_8g_stock").root)
    assert (area.path, area.kind, area.priority, area.is_zram, area.ram_used) == ("/var/swap", "file", -2, False, None)


def test_none() -> None:
    assert read_swaps(board("rk3588_8g_vendor").root) == ()
    assert read_swaps("/nowhere") == ()


def test_a_path_with_a_space() -> None:
    data = b"Filename\tType\tSize\tUsed\tPriority\n/my\\040swap file 10 5 -3\nbroken line\n"
    assert parse_swaps(data) == [("/my swap", "file", 10240, 5120, -3)]


@given(st.binary(max_size=200))
def test_garbage_never_raises(data: bytes) -> None:
    parse_swaps(data)
    parse_swaps(b"\n" + data)
    parse_mm_stat(data)
