"""Bounds of a rate against golden values (scipy 1.17, `beta.ppf`) and what a bound must be."""

import pytest

from steadyfleet_contract.rates import excluded_above, interval

GOLDEN = [
    (0, 5, 0.0, 0.521823750105),
    (1, 2, 0.012579117093, 0.987420882907),
    (1, 3, 0.008403758660, 0.905700675950),
    (4, 9, 0.136995662265, 0.787991493221),
    (1, 10, 0.002528578544, 0.445016117028),
    (5, 10, 0.187086028447, 0.812913971553),
    (10, 10, 0.691502892181, 1.0),
    (3, 15, 0.043312005106, 0.480891133807),
    (7, 32, 0.092771532285, 0.399728263712),
    (1, 64, 0.000395512514, 0.084010326434),
]


@pytest.mark.parametrize(("differing", "launches", "low", "high"), GOLDEN)
def test_interval_is_that_of_clopper_and_pearson(differing: int, launches: int, low: float, high: float) -> None:
    found = interval(differing, launches)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-11)


@pytest.mark.parametrize(("differing", "launches", "low", "high"), GOLDEN)
def test_interval_of_the_others_is_its_mirror(differing: int, launches: int, low: float, high: float) -> None:
    found = interval(launches - differing, launches)
    assert (found.low, found.high) == pytest.approx((1 - high, 1 - low), abs=1e-11)


@pytest.mark.parametrize(
    ("launches", "bound"), [(1, 0.95), (2, 0.77639320225), (5, 0.450719728347), (20, 0.139108340668)]
)
def test_bound_of_none_excludes_what_would_have_shown(launches: int, bound: float) -> None:
    assert excluded_above(launches) == pytest.approx(bound, abs=1e-9)
    assert (1 - excluded_above(launches)) ** launches == pytest.approx(0.05)


@pytest.mark.parametrize(("differing", "launches"), [(1, 0), (0, 0), (3, 2), (-1, 2)])
def test_impossible_count_is_refused(differing: int, launches: int) -> None:
    with pytest.raises(ValueError, match="is no count"):
        interval(differing, launches)


def test_no_launch_says_nothing() -> None:
    with pytest.raises(ValueError, match="no launch says nothing"):
        excluded_above(0)
