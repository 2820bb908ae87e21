"""What the engine is started with: everything pinned that the user left open, nothing of ours that it could see."""

import json
from pathlib import Path

import pytest

from steadyfleet_contract.report import Outcome
from steadyfleet_contract.spec import LaunchKind, ModelSource, ProbeSpec
from steadyfleet_probe import recipe
from steadyfleet_probe.errors import LaunchFailed
from steadyfleet_probe.recipe import EngineBuild
from tests.unit.probe.builders import probe_spec

GPU_BUILD = EngineBuild(is_cpu=False, has_flashinfer_autotune=True)
CPU_BUILD = EngineBuild(is_cpu=True, has_flashinfer_autotune=True)
OLD_BUILD = EngineBuild(is_cpu=False, has_flashinfer_autotune=False)

INDUCTOR = {"deterministic": True, "combo_kernels": True, "benchmark_combo_kernel": False}
OWN = [
    "--model=/m",
    "--host=127.0.0.1",
    "--port=7",
    "--served-model-name=model",
    "--max-logprobs=20",
    "--logprobs-mode=raw_logprobs",
]


def arguments(
    *user: str, kind: LaunchKind = LaunchKind.PINNED, build: EngineBuild = GPU_BUILD, spec: ProbeSpec | None = None
) -> list[str]:
    spec = spec or probe_spec(arguments=user)
    return recipe.arguments(spec, model="/m", port=7, kind=kind, build=build)


def test_as_served_launch_has_the_users_arguments_and_what_asking_needs() -> None:
    assert arguments("--enforce-eager", kind=LaunchKind.AS_SERVED) == [*OWN, "--enforce-eager"]


def test_pinned_launch_fixes_defaults_and_compilation() -> None:
    assert arguments() == [
        *OWN,
        "--seed=0",
        "--generation-config=vllm",
        "--no-enable-prefix-caching",
        "--max-num-seqs=16",
        "--max-num-batched-tokens=2048",
        "--compilation-config.inductor_compile_config.deterministic=true",
        "--compilation-config.inductor_compile_config.combo_kernels=true",
        "--compilation-config.inductor_compile_config.benchmark_combo_kernel=false",
        "--no-enable-flashinfer-autotune",
    ]


@pytest.mark.parametrize(
    ("user", "absent"),
    [
        (["--seed", "7"], "--seed=0"),
        (["--seed=7"], "--seed=0"),
        (["--generation_config=auto"], "--generation-config=vllm"),
        (["--enable-prefix-caching"], "--no-enable-prefix-caching"),
        (["--enable-flashinfer-autotune"], "--no-enable-flashinfer-autotune"),
        (["--kernel-config", "{}"], "--no-enable-flashinfer-autotune"),
        (["--max_num_seqs", "4"], "--max-num-seqs=16"),
    ],
)
def test_what_the_user_says_is_not_said_again(user: list[str], absent: str) -> None:
    assert absent not in arguments(*user)


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        (["--max-num-seqs=4096"], "--max-num-batched-tokens=4096"),
        (["--max-num-seqs", "8"], "--max-num-batched-tokens=2048"),
        (["--max-num-batched-tokens", "8"], "--max-num-seqs=8"),
        (["--max-num-batched-tokens", "8k"], "--max-num-seqs=16"),
    ],
)
def test_sequences_never_exceed_batched_tokens(user: list[str], expected: str) -> None:
    assert expected in arguments(*user)


@pytest.mark.parametrize(
    "user",
    [
        ["--compilation-config", '{"mode": 3, "inductor_compile_config": {"max_autotune": false}}'],
        ['--compilation-config={"mode": 3, "inductor_compile_config": {"max_autotune": false}}'],
        ["-cc", '{"mode": 3, "inductor_compile_config": {"max_autotune": false}}'],
        ["--compilation_config", '{"mode": 3, "inductor_compile_config": {"max_autotune": false}}'],
    ],
)
def test_users_compilation_config_is_kept_and_completed(user: list[str]) -> None:
    found = [argument for argument in arguments("--a", *user, "--b") if argument.startswith("--compilation-config=")]
    config = json.loads(found[0].partition("=")[2])
    assert config == {"mode": 3, "inductor_compile_config": {**INDUCTOR, "max_autotune": False}}
    assert [a for a in arguments("--a", *user, "--b") if a in ("--a", "--b")] == ["--a", "--b"]


def test_users_own_inductor_setting_wins() -> None:
    found = arguments('--compilation-config={"inductor_compile_config": {"deterministic": false}}')
    config = json.loads(next(a for a in found if a.startswith("--compilation-config=")).partition("=")[2])
    assert config["inductor_compile_config"]["deterministic"] is False


@pytest.mark.parametrize("spelling", ["-cc", "--compilation-config"])
def test_dotted_arguments_keep_the_users_spelling_since_vllm_merges_one_spelling_only(spelling: str) -> None:
    found = arguments(f"{spelling}.mode=3")
    assert f"{spelling}.inductor_compile_config.deterministic=true" in found


def test_level_alone_becomes_a_mode() -> None:
    found = next(a for a in arguments("--compilation-config", "3") if a.startswith("--compilation-config="))
    assert json.loads(found.partition("=")[2])["mode"] == 3


def test_compilation_config_that_is_not_json_is_refused() -> None:
    with pytest.raises(LaunchFailed, match=r"--compilation-config: '{mode' is not a JSON object") as raised:
        arguments("--compilation-config={mode")
    assert raised.value.outcome is Outcome.ARGUMENT_REJECTED


@pytest.mark.parametrize(
    ("user", "build"), [(["--enforce-eager"], GPU_BUILD), ([], CPU_BUILD)], ids=["eager", "cpu"]
)
def test_nothing_is_said_to_inductor_where_it_tunes_nothing(user: list[str], build: EngineBuild) -> None:
    assert not [argument for argument in arguments(*user, build=build) if "inductor" in argument]


def test_argument_that_the_engine_does_not_know_is_left_out() -> None:
    assert "--no-enable-flashinfer-autotune" not in arguments(build=OLD_BUILD)


@pytest.mark.parametrize("argument", ["--port=8000", "--model", "--served_model_name=x", "--api-key=k", "--uds"])
def test_arguments_of_the_probe_are_refused_by_name(argument: str) -> None:
    with pytest.raises(LaunchFailed, match="is set by the probe; remove it from the check") as raised:
        arguments(argument)
    assert raised.value.outcome is Outcome.ARGUMENT_REJECTED


@pytest.mark.parametrize(
    ("user", "expected"),
    [([], True), (["-tp", "2"], False), (["--tensor_parallel_size=2"], False)],
)
def test_gpus_per_probe_is_the_tensor_parallel_size_unless_arguments_say(user: list[str], expected: bool) -> None:
    spec = probe_spec(arguments=tuple(user), gpus_per_probe=4)
    assert ("--tensor-parallel-size=4" in arguments(spec=spec, kind=LaunchKind.AS_SERVED)) is expected


def test_revision_of_a_repository_is_passed_on() -> None:
    spec = probe_spec(model=ModelSource(repository="org/name", revision="abc"))
    assert "--revision=abc" in arguments(spec=spec)


def environment(kind: LaunchKind, spec: ProbeSpec | None = None) -> dict[str, str]:
    pod = {
        "PATH": "/bin",
        "STEADYFLEET_PROBE_SPEC": "{}",
        "STEADYFLEET_ANYTHING": "x",
        "VLLM_API_KEY": "k",
        "HOME": "/root",
        "OMP_NUM_THREADS": "2",
    }
    return recipe.environment(spec or probe_spec(), pod=pod, private={"HOME": "/w/home"}, kind=kind)


@pytest.mark.parametrize("kind", list(LaunchKind))
def test_engine_sees_the_images_environment_and_nothing_of_ours(kind: LaunchKind) -> None:
    found = environment(kind)
    assert found["OMP_NUM_THREADS"] == "2"
    assert not [name for name in found if name.startswith("STEADYFLEET_")]
    assert "VLLM_API_KEY" not in found


def test_private_folders_win_over_image_and_check() -> None:
    spec = probe_spec(environment={"HOME": "/shared", "VLLM_X": "1"})
    found = environment(LaunchKind.PINNED, spec)
    assert found["HOME"] == "/w/home"
    assert found["VLLM_X"] == "1"


def test_only_pinned_launches_get_the_recipe_and_the_user_may_override_it() -> None:
    assert "TORCHINDUCTOR_FORCE_FILTER_REDUCTION_CONFIGS" not in environment(LaunchKind.AS_SERVED)
    assert environment(LaunchKind.PINNED)["VLLM_TRITON_FORCE_FIRST_CONFIG"] == "1"
    spec = probe_spec(environment={"VLLM_TRITON_FORCE_FIRST_CONFIG": "0"})
    assert environment(LaunchKind.PINNED, spec)["VLLM_TRITON_FORCE_FIRST_CONFIG"] == "0"


@pytest.mark.parametrize(
    ("user", "length"), [(["--max-model-len", "4096"], 4096), (["--max_model_len=4k"], None), ([], None)]
)
def test_stated_length_is_read_if_it_is_a_plain_number(user: list[str], length: int | None) -> None:
    assert recipe.stated_max_model_len(user) == length


def test_recipe_change_needs_a_new_recipe_number() -> None:
    """A change of the pinned command line or environment starts new epochs: raise RECIPE and then this hash."""
    pinned = {"arguments": arguments(), "environment": environment(LaunchKind.PINNED)}
    assert json.dumps(pinned, sort_keys=True) == Path(__file__).with_name("recipe_1.json").read_text().strip()
