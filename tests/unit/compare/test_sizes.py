"""The numbers themselves, on tables small enough to work out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from steadyfleet_contract.launches import Outputs
from steadyfleet_contract.quantum import quantum, row_quanta
from steadyfleet_contract.sizes import decode_sizes, differing, forced_sizes


def outputs(tokens: list[int], rows: list[dict[int, float]], *, lengths: tuple[int, ...] | None = None) -> Outputs:
    """Each row by falling logprob; the chosen logprob is that of the token."""
    ids = np.array([list(row) for row in rows], np.uint32)
    values = np.array([list(row.values()) for row in rows], np.float32)
    chosen = np.array([row[token] for token, row in zip(tokens, rows, strict=True)], np.float32)
    return Outputs(np.array(tokens, np.uint32), chosen, ids, values, lengths or (len(tokens),))


ROW = {1: -1.0, 2: -1.25, 3: -2.0, 4: -3.0, 5: -4.0}
SWAPPED = {2: -1.0, 1: -1.125, 3: -2.0, 4: -3.0, 5: -4.0}
FOREIGN = {9: -0.5, 2: -1.25, 3: -2.0, 4: -3.0, 5: -4.0}


def test_margin_is_the_larger_gap_of_both_launches() -> None:
    (found,) = decode_sizes(outputs([1], [ROW]), outputs([2], [SWAPPED])).divergences
    assert found.margin == pytest.approx(0.25)
    assert (found.a_of_b, found.b_of_a) == pytest.approx((-1.25, -1.125))
    assert not found.missing


def test_token_outside_of_the_top_makes_the_margin_a_lower_bound() -> None:
    (found,) = decode_sizes(outputs([1], [ROW]), outputs([9], [FOREIGN])).divergences
    assert found.missing
    assert found.a_of_b is None
    assert found.margin == pytest.approx(3.5)


def test_token_outside_of_a_short_top_leaves_the_margin_unknown() -> None:
    (found,) = decode_sizes(outputs([1], [{1: -1.0, 2: -1.5}]), outputs([9], [{9: -1.0, 2: -1.5}])).divergences
    assert (found.margin, found.missing) == (None, False)


def test_only_the_first_divergence_of_a_prompt_counts_and_nothing_after_it() -> None:
    a = outputs([1, 1, 1, 1], [ROW, ROW, ROW, ROW], lengths=(3, 1))
    b = outputs([1, 2, 2, 1], [ROW, SWAPPED, SWAPPED, ROW], lengths=(3, 1))
    found = decode_sizes(a, b)
    assert [(entry.prompt, entry.position) for entry in found.divergences] == [(0, 1)]
    assert found.deltas.positions == 2
    assert found.deltas.largest == 0.0


def test_exact_tie_may_go_either_way_and_is_greedy() -> None:
    tied = {1: -1.0, 2: -1.0, 3: -2.0, 4: -3.0, 5: -4.0}
    assert decode_sizes(outputs([1], [tied]), outputs([2], [tied])).b_not_greedy == 0
    assert decode_sizes(outputs([1], [tied]), outputs([3], [tied])).b_not_greedy == 1


def test_divergence_of_two_equal_rows_is_zero_and_of_others_is_their_kl_with_the_rest_as_one_event() -> None:
    same = forced_sizes(outputs([1], [ROW]), outputs([1], [ROW]))
    assert same.divergence == pytest.approx(0.0, abs=1e-12)
    assert same.agreement == 1.0
    p, q = {1: np.log(0.5), 2: np.log(0.25)}, {1: np.log(0.25), 2: np.log(0.5)}
    found = forced_sizes(outputs([1], [p]), outputs([1], [q]))
    assert found.divergence == pytest.approx(0.25 * np.log(2), abs=1e-6)
    assert found.tail_mass == pytest.approx(0.25, abs=1e-6)
    assert found.agreement == 1.0


def test_all_nans_have_the_same_bits_and_zeros_of_both_signs_have_not() -> None:
    quiet, loud = outputs([1], [{1: float("nan")}]), outputs([1], [{1: float("nan")}])
    loud.logprobs.view(np.uint32)[:] = 0x7FC01234
    assert not differing(quiet, loud)[1].any()
    assert differing(outputs([1], [{1: 0.0}]), outputs([1], [{1: -0.0}]))[1].all()


@pytest.mark.parametrize("step", [0.5, 0.125, 0.0625, 0.03125])
def test_step_of_the_grid_is_read_off_the_gaps(step: float) -> None:
    random = np.random.default_rng(3)
    logits = random.integers(0, 200, size=(64, 20)) * step
    rows = (np.sort(logits, axis=1)[:, ::-1] - 13.7).astype(np.float32)
    assert quantum(rows) == step


def test_logits_in_float32_have_no_grid() -> None:
    rows = -np.sort(np.random.default_rng(3).gamma(2.0, 2.0, size=(64, 20)), axis=1).astype(np.float32)
    assert quantum(rows) is None


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_row_that_is_not_finite_has_no_step(value: float) -> None:
    rows = np.array([[-1.0, -1.5, -2.0, -2.5, -3.0, value]], np.float32)
    assert np.isnan(row_quanta(rows)).all()
