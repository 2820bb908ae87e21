"""The fingerprint has what explains, within limits, and no secret."""

import numpy as np
import pytest

from steadyfleet_probe import surroundings


def test_every_installed_package_has_its_version() -> None:
    assert surroundings.versions()["numpy"] == np.__version__


def test_host_is_told() -> None:
    facts = surroundings.host()
    assert facts["kernel"]
    assert facts["bootID"]
    assert int(facts["cpus"]) >= 1


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("VLLM_USE_V2_MODEL_RUNNER", True),
        ("NCCL_ALGO", True),
        ("OMP_NUM_THREADS", True),
        ("HF_TOKEN", False),
        ("VLLM_API_KEY", False),
        ("NVIDIA_SECRET", False),
        ("NVIDIA_NGC_API_KEYS", False),
        ("CUDA_PASS", False),
        ("VLLM_S3_ACCESS_KEY_ID", False),
        ("NCCL_CREDS", False),
        ("VLLM_MAX_TOKENS", False),
        ("TOKENIZERS_PARALLELISM", True),
        ("DATABASE_URL", False),
        ("VLLM_CACHE_ROOT", False),
    ],
)
def test_environment_is_an_allow_list_without_secrets_and_without_the_launchs_folders(name: str, told: bool) -> None:
    found = surroundings.environment({name: "x"}, private={"VLLM_CACHE_ROOT": "/w"})
    assert (name in found) is told


def test_number_of_tokens_is_no_token() -> None:
    found = surroundings.environment({"VLLM_MAX_TOKENS": "8192", "VLLM_TOKEN": "8192"}, private={})
    assert found == {"VLLM_MAX_TOKENS": "8192"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:pw@proxy:8080", "http://***@proxy:8080"),
        ("http://user:p@w@proxy", "http://***@proxy"),
        ("s3://token@bucket/a@b", "s3://***@bucket/a@b"),
        ("https://models.example/a@b", "https://models.example/a@b"),
        ('{"secret_key": "x", "size": 5, "name": "y"}', '{"secret_key": "***", "size": 5, "name": "y"}'),
        ("Config(hf_token='x', extra={'api_key': \"y\"})", "Config(hf_token='***', extra={'api_key': \"***\"})"),
        ("num_tokens='5'", "num_tokens='5'"),
        ("model='/m', dtype=\"x\"", "model='/m', dtype=\"x\""),
    ],
)
def test_texts_are_told_without_secrets(text: str, shown: str) -> None:
    assert surroundings.redacted(text) == shown
    assert surroundings.bounded({"k": text}) == {"k": shown}


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--hf-token=x", "--model=/m"], ["--hf-token=***", "--model=/m"]),
        (["--api-key", "x", "y", "--seed=0"], ["--api-key", "***", "***", "--seed=0"]),
        (["--ssl-password", "x"], ["--ssl-password", "***"]),
        (["--max-num-batched-tokens", "8192"], ["--max-num-batched-tokens", "8192"]),
        (["--max-num-batched-tokens=8192"], ["--max-num-batched-tokens=8192"]),
        (["--kv-transfer-config.extra.access_key=x"], ["--kv-transfer-config.extra.access_key=***"]),
        (['--kv-transfer-config={"a": {"password": "x"}}'], ['--kv-transfer-config={"a": {"password": "***"}}']),
        (["--download", "https://u:p@host/m"], ["--download", "https://***@host/m"]),
        (["serve", "/m"], ["serve", "/m"]),
    ],
)
def test_command_line_is_told_without_secrets(arguments: list[str], shown: list[str]) -> None:
    assert surroundings.without_secrets(arguments) == shown


def test_engine_configuration_is_flat_and_without_what_always_differs() -> None:
    info: dict[str, object] = {
        "vllm_config": {
            "model_config": {"dtype": "torch.bfloat16", "hf_token": "secret", "quantization": None},
            "parallel_config": {"data_parallel_master_port": 1234, "tensor_parallel_size": 2},
            "compilation_config": {"custom_ops": ["all"], "compilation_time": 1.5, "inductor_passes": {}},
            "instance_id": "17",
        },
        "vllm_env": {"VLLM_USE_AOT_COMPILE": True},
        "system_env": {"torch_version": "2.13.0", "pip_packages": "x" * 9000},
    }
    assert surroundings.engine(info, more={"attentionBackend": "FLASH_ATTN"}) == {
        "attentionBackend": "FLASH_ATTN",
        "model_config.dtype": "torch.bfloat16",
        "parallel_config.tensor_parallel_size": "2",
        "compilation_config.custom_ops": '["all"]',
        "compilation_config.inductor_passes": "{}",
        "env.VLLM_USE_AOT_COMPILE": "true",
        "system.torch_version": "2.13.0",
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1, b=[2, 3], c=C(d='x, y=z')", {"a": "1", "b": "[2, 3]", "c": "C(d='x, y=z')"}),
        ("a={'f': <G.H: 0>, 'g': (1, 2)}", {"a": "{'f': <G.H: 0>, 'g': (1, 2)}"}),
        ("model='/m, n', revision=None", {"model": "'/m, n'", "revision": "None"}),
        ("", {}),
        ("no assignment", {}),
    ],
)
def test_logged_configuration_is_split_at_its_top_level(text: str, expected: dict[str, str]) -> None:
    assert dict(surroundings.assignments(text)) == expected


def test_logged_configuration_is_told_beside_the_served_one() -> None:
    facts = surroundings.engine({"vllm_config": {"unavailable": "HTTP 500"}}, more={"config": "dtype=torch.bfloat16"})
    assert facts == {"unavailable": "HTTP 500", "logged.dtype": "torch.bfloat16"}


def test_long_values_are_cut_and_carry_the_hash_of_the_whole() -> None:
    one, other = (surroundings.bounded({"k": "x" * 5000 + end})["k"] for end in "ab")
    assert len(one) == 2048
    assert one != other


def test_number_of_entries_is_bounded() -> None:
    assert len(surroundings.bounded({str(number): "" for number in range(5000)})) == 2048
