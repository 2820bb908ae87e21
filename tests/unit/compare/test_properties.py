"""What must hold of every comparison, whatever the launches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from steadyfleet_contract.causes import Cause
from steadyfleet_contract.compare import compare
from steadyfleet_contract.comparison import Comparison
from steadyfleet_contract.levels import Level
from tests.data.launches.shrink import NAMES
from tests.unit.compare.records import (
    Fault,
    Record,
    last_bit,
    launch,
    not_a_number,
    other_token,
    outputs_of,
    shifted,
    weights_unknown,
    wrong_weights,
)

names = st.sampled_from(NAMES)
places = {"prompt": st.integers(0, 3), "position": st.integers(0, 31)}
faults: st.SearchStrategy[Fault] = st.one_of(
    st.builds(shifted, st.floats(1e-6, 1e4)),
    st.builds(last_bit, field=st.sampled_from(["decode", "teacher_forced"]), **places),
    st.builds(not_a_number, field=st.sampled_from(["decode", "teacher_forced"]), **places),
    st.builds(other_token, rank=st.integers(1, 19), **places),
    st.builds(outputs_of, names),
    st.sampled_from([wrong_weights, weights_unknown]),
)
fault_lists = st.lists(faults, max_size=3)


def verdict(found: Comparison) -> tuple[object, ...]:
    return found.level, found.cause, found.certainty, found.blames, found.quantum, found.identical


@given(names, fault_lists)
def test_a_launch_is_identical_to_itself(name: str, put_in: list[Fault]) -> None:
    found = compare(launch(name, *put_in), launch(name, *put_in))
    assert (found.level, found.cause) == (Level.IDENTICAL, Cause.NONE)
    assert not found.divergences


@given(names, names, fault_lists, fault_lists)
def test_the_verdict_is_the_same_from_both_sides(a: str, b: str, into_a: list[Fault], into_b: list[Fault]) -> None:
    one, other = launch(a, *into_a), launch(b, *into_b)
    there, back = compare(one, other), compare(other, one)
    assert verdict(there) == verdict(back)
    assert {"": "", "A": "B", "B": "A"}[there.suspect] == back.suspect


@given(names, names, fault_lists, st.text("abcdef0123456789", min_size=1), st.text("ghi", min_size=1))
def test_renaming_cards_kernels_and_launches_changes_nothing(
    a: str, b: str, into_b: list[Fault], uuid: str, kernel: str
) -> None:
    def renamed(record: Record) -> None:
        record["gpu"]["uuid"] = f"GPU-{uuid}"
        record["launch"] += "-renamed"
        for found in record["kernel_plan"]["kernels"]:
            found["kernel_name"] = kernel

    plain = compare(launch(a), launch(b, *into_b))
    changed = compare(launch(a, renamed), launch(b, *into_b, renamed))
    assert verdict(plain) == verdict(changed)
    assert plain.bits == changed.bits


@given(names, names, fault_lists)
def test_a_node_or_gpu_is_blamed_only_for_what_differs_under_it(a: str, b: str, into_b: list[Fault]) -> None:
    found = compare(launch(a), launch(b, *into_b))
    if found.cause is Cause.HARDWARE:
        assert not any(kernel.explains for kernel in found.plan)
        assert not {"version", "image", "environment", "configuration"} & found.settings.keys()
        assert found.a.weights == found.b.weights != ""
    if found.cause is Cause.WEIGHTS:
        assert found.a.weights != found.b.weights
    if found.identical:
        assert found.cause is Cause.NONE
