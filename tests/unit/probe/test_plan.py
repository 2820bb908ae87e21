"""Reading the plan from a cache tree of the form that Inductor, Triton and FlashInfer write, and whether a pin held.

Names, flags and choices are those of real launches on an H200 (vLLM 0.26, torch 2.11).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from steadyfleet_probe.plan import Plan, read_plan

CHOSEN = {"XBLOCK": 64, "R0_BLOCK": 64, "num_warps": 16, "num_stages": 1, "found_by_coordesc": False}
ALL_FLAGS = ("deterministic", "force_filter_reduction_configs")


@dataclass
class Tree:
    root: Path
    written: int = field(default=0)

    def kernel(
        self,
        name: str,
        heuristic: str,
        *,
        flags: tuple[str, ...] = (),
        chosen: Mapping[str, object] | None = None,
        folder: str = "",
        body: str = "",
    ) -> None:
        """A kernel source, and beside it the choice if it was tuned."""
        self.written += 1
        folder_path = self.root / "torch_aot_compile" / "inductor_cache" / (folder or f"c{self.written}")
        folder_path.mkdir(parents=True, exist_ok=True)
        function = "triton_" if name.startswith("Placeholder") else name
        meta = {flag: flag in flags for flag in (*ALL_FLAGS, "are_deterministic_algorithms_enabled")}
        (folder_path / f"csource{self.written}.py").write_text(
            f"@triton_heuristics.{heuristic}(\n    size_hints={{'x': 131072, 'r0_': 128}},\n    filename=__file__,\n"
            f"    inductor_meta={{'kernel_name': '{name}', {str(meta)[1:-1]}}},\n"
            f")\n@triton.jit\ndef {function}(in_ptr0, xnumel):\n    {body}\n"
        )
        if chosen is not None:
            cubin = f"HASH{self.written}"
            compiled = self.root / "triton" / "0" / cubin
            compiled.mkdir(parents=True)
            (compiled / f"{function}.json").write_text("{}")
            (compiled / f"__grp__{function}.json").write_text("{}")
            content = {**chosen, "configs_hash": "6ffa", "time_taken_ms": self.written, "triton_cache_hash": cubin}
            (folder_path / f"{self.written:064x}.best_config").write_text(json.dumps(content))

    def read(self) -> Plan:
        return read_plan(self.root)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize("timings", ["[[{}]]", "[[]]", "[[{}, []]]", "[7]", "{}", '[[{}, "soon"], [{}, null]]'])
def test_timings_of_another_form_are_a_choice_that_is_not_known(timings: str, tree: Tree) -> None:
    (tree.root / "k.autotune.json").write_text(f'{{"configs_timings": {timings}}}')
    plan = tree.read()
    assert list(plan.triton.values()) in (["unreadable"], ["{}"])
    assert plan.why_not_pinned()


def test_files_that_vanish_while_the_tree_is_read_are_no_kernels(tree: Tree) -> None:
    (tree.root / "gone.py").symlink_to(tree.root / "nowhere.py")
    assert tree.read().kernels == ()


def test_deterministic_compilation_holds_the_pin(tree: Tree) -> None:
    tree.kernel("triton_per_fused_rms_norm_0", "persistent_reduction", flags=ALL_FLAGS)
    tree.kernel("triton_red_fused_1", "reduction", flags=("deterministic",))
    tree.kernel("triton_poi_fused_2", "pointwise", flags=ALL_FLAGS, chosen={"XBLOCK": 1024})
    plan = tree.read()
    assert plan.why_not_pinned() == ""
    assert sorted(kernel.name for kernel in plan.kernels if not kernel.chosen) == [
        "triton_per_fused_rms_norm_0",
        "triton_red_fused_1",
    ]


def test_tuned_reduction_breaks_the_pin(tree: Tree) -> None:
    tree.kernel("triton_red_fused_1", "reduction", flags=("deterministic",), chosen=CHOSEN)
    assert tree.read().why_not_pinned() == "1 reductions were tuned, among them triton_red_fused_1"


def test_flag_that_did_not_survive_breaks_the_pin(tree: Tree) -> None:
    tree.kernel("triton_red_fused_1", "reduction")
    assert "the determinism setting did not reach 1 reductions" in tree.read().why_not_pinned()


def test_kernels_made_only_to_time_a_fusion_do_not_count(tree: Tree) -> None:
    tree.kernel("Placeholder.DESCRIPTIVE_NAME", "reduction", chosen=CHOSEN)
    plan = tree.read()
    assert plan.why_not_pinned() == ""
    assert not [key for key in plan.section() if key.startswith("inductor/")]


@pytest.mark.parametrize(
    ("body", "breaks"), [("R0_BLOCK: tl.constexpr = 128", True), ("tmp0 = tl.load(in_ptr0)", False)]
)
def test_tuned_combo_kernel_breaks_the_pin_only_if_it_reduces(tree: Tree, body: str, breaks: bool) -> None:
    tree.kernel("triton_for_fused_7", "foreach", flags=ALL_FLAGS, chosen={"num_warps": 8}, body=body)
    assert bool(tree.read().why_not_pinned()) is breaks


def test_kernels_in_one_folder_are_told_apart_by_the_triton_hash(tree: Tree) -> None:
    tree.kernel("triton_red_fused_1", "reduction", flags=ALL_FLAGS, folder="cz")
    tree.kernel("triton_poi_fused_2", "pointwise", flags=ALL_FLAGS, folder="cz", chosen={"XBLOCK": 512})
    plan = tree.read()
    assert {kernel.name: bool(kernel.chosen) for kernel in plan.kernels} == {
        "triton_red_fused_1": False,
        "triton_poi_fused_2": True,
    }
    assert plan.why_not_pinned() == ""


def test_choice_that_can_not_be_paired_breaks_the_pin_beside_a_reduction(tree: Tree, tmp_path: Path) -> None:
    tree.kernel("triton_red_fused_1", "reduction", flags=ALL_FLAGS, folder="cz")
    tree.kernel("triton_poi_fused_2", "pointwise", flags=ALL_FLAGS, folder="cz")
    folder = tmp_path / "torch_aot_compile" / "inductor_cache" / "cz"
    (folder / "lost.best_config").write_text('{"triton_cache_hash": "NOWHERE"}')
    assert tree.read().why_not_pinned() == "1 tuned kernels could not be told apart"


def test_damaged_choice_breaks_the_pin(tree: Tree, tmp_path: Path) -> None:
    tree.kernel("triton_red_fused_1", "reduction", flags=ALL_FLAGS, folder="cz")
    (tmp_path / "torch_aot_compile" / "inductor_cache" / "cz" / "x.best_config").write_text("{")
    assert tree.read().unpaired == 1


def test_triton_autotune_breaks_the_pin_and_the_least_time_wins(tree: Tree, tmp_path: Path) -> None:
    file = tmp_path / "triton" / "KEY" / "chunk_fwd_kernel.autotune.json"
    file.parent.mkdir(parents=True)
    timings = [[{"kwargs": {"BK": 64}, "num_warps": 4}, [0.2, 0.1, 0.3]], [{"kwargs": {"BK": 32}, "num_warps": 2}, 0.1]]
    file.write_text(json.dumps({"key": [1], "configs_timings": timings}))
    plan = tree.read()
    assert plan.triton == {"KEY/chunk_fwd_kernel.autotune.json": '{"kwargs": {"BK": 32}, "num_warps": 2}'}
    assert "1 Triton kernels were tuned" in plan.why_not_pinned()


@pytest.mark.parametrize(
    ("content", "breaks"), [('{"_metadata": {}}', False), ('{"_metadata": {}, "op": ["R", 3]}', True)]
)
def test_flashinfer_tactics_break_the_pin_if_there_are_any(
    tree: Tree, tmp_path: Path, content: str, breaks: bool
) -> None:
    file = tmp_path / "vllm" / "flashinfer_autotune_cache" / "0.6" / "90" / "ab" / "autotune_configs_dp0_rank0.json"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    assert bool(tree.read().why_not_pinned()) is breaks


def test_compiled_graph_that_quotes_its_kernels_is_none(tree: Tree, tmp_path: Path) -> None:
    tree.kernel("triton_red_fused_1", "reduction", flags=ALL_FLAGS)
    digest = tree.read().digest()
    graph = tmp_path / "torch_aot_compile" / "inductor_cache" / "c1" / "cgraph.py"
    kernel = (graph.parent / "csource1.py").read_text()
    graph.write_text(f"async_compile = AsyncCompile()\nk = async_compile.triton('k', \'\'\'{kernel}\'\'\')")
    plan = tree.read()
    assert [kernel.source for kernel in plan.kernels] == ["csource1.py"]
    assert plan.digest() == digest


def test_empty_tree_says_that_nothing_was_compiled(tree: Tree) -> None:
    plan = tree.read()
    assert plan.why_not_pinned() == ""
    assert plan.section()["kernels"].startswith("none: the launch compiled no Triton kernel")


def test_digest_follows_reductions_and_nothing_that_is_harmless(tree: Tree, tmp_path: Path) -> None:
    def plan(name: str, *, reduction: Mapping[str, object], pointwise: Mapping[str, object]) -> Plan:
        other = Tree(tmp_path / name)
        other.kernel("triton_red_fused_1", "reduction", chosen=reduction)
        other.kernel("triton_poi_fused_2", "pointwise", chosen=pointwise)
        other.kernel("Placeholder.DESCRIPTIVE_NAME", "reduction", chosen=reduction)
        return other.read()

    first = plan("a", reduction=CHOSEN, pointwise={"XBLOCK": 1024})
    same = plan("b", reduction=CHOSEN, pointwise={"XBLOCK": 512})
    other = plan("c", reduction={**CHOSEN, "R0_BLOCK": 8}, pointwise={"XBLOCK": 1024})
    assert first.digest() == same.digest()
    assert first.digest() != other.digest()


def test_section_shows_the_choice_without_what_changes_each_time(tree: Tree) -> None:
    tree.kernel("triton_red_fused_1", "reduction", chosen=CHOSEN)
    text = tree.read().section()["inductor/csource1.py"]
    assert text.startswith("triton_red_fused_1 reduction no flags {")
    assert '"R0_BLOCK": 64' in text
    assert "time_taken_ms" not in text
