"""Which facts around a launch are compared, and which differ by nature.

Keys are `section.key` of the report's fingerprint. What explains a difference is decided where launches are judged.
"""

from __future__ import annotations

import re

COMPARED_SECTIONS = ("versions", "engine", "environment", "gpu", "host", "image")
"""`weights` and `plan` are judged by themselves; they are results, not surroundings."""

BY_NATURE = re.compile(
    r"gpu\.(\d+\.)?(uuid|serial|index|minor_number|pci\.bus_id|memory\.used|temperature\.gpu|pstate|power\..*"
    r"|clocks\.current\..*|clocks_throttle_reasons\..*|ecc\.errors\..*|retired_pages\..*)"
    r"|host\.(bootID|hostname)"
    r"|environment\.(NVIDIA_VISIBLE_DEVICES|CUDA_VISIBLE_DEVICES|HOSTNAME|MASTER_.*)"
    r"|engine\.(env\.)?(VLLM_HOST_IP|VLLM_PORT|VLLM_DP_MASTER_.*|VLLM_RPC_BASE_PATH|VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME)"
    r"|engine\.(.*\.)?(num_gpu_blocks|num_cpu_blocks|kv_cache_size_tokens|instance_id|compile_cache_key|aot_key)"
    r"|engine\.(.*_port|.*_master_ip|.*cache_dir)"
    r"|engine\.system\.gpu_topo"
)
"""Facts that differ from GPU to GPU, node to node or launch to launch by nature: to compare them would explain away
every fault. Error counters are among them on purpose: they are signs of a fault, not an excuse for one."""
