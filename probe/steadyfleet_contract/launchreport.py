"""Reads a report of the probe, alone or as the evidence store holds it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from steadyfleet_contract.digest import DigestMismatch, check_report, unpack
from steadyfleet_contract.errors import InputInvalid
from steadyfleet_contract.launches import Chooser, ChooserState, Kind, Launch, Pass, stacked
from steadyfleet_contract.plans import PlanState, UsedPlan, from_section
from steadyfleet_contract.report import Outcome, PassName, PassResult, Report
from steadyfleet_contract.spec import CacheState
from steadyfleet_contract.surroundings import BY_NATURE, COMPARED_SECTIONS

_OWN_FOLDER = re.compile(r"/launches/(Pinned|AsServed)\b")
"""A launch of each kind has a tree of its own in the pod; values that name it say nothing else."""


class Known(BaseModel):
    """What the operator knew of the launch, as far as it is compared (line 1 of a bundle)."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: str = ""
    node: str = ""
    image_id: str = ""
    evidence: str = ""


def known(head: Mapping[str, Any], *, file: str) -> Known:
    """Raises InputInvalid."""
    try:
        return Known.model_validate(head.get("launch"))
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"]
        remedy = "take a bundle of a launch as the store wrote it"
        raise InputInvalid(file, message, field="launch", remedy=remedy) from error


def from_report(report: Report, *, file: str, format: str, known: Known | None = None) -> Launch:  # noqa: A002
    """Raises InputInvalid."""
    known = known or Known()
    if report.outcome is not Outcome.COMPLETED:
        message = f"{report.outcome.value}: the launch has no outputs"
        raise InputInvalid(file, message, field="outcome", remedy="compare launches that completed")
    try:
        check_report(report)
        passes = {result.name.value: _pass(result) for result in report.passes}
    except (DigestMismatch, ValueError) as error:
        raise InputInvalid(file, str(error), remedy="the report was changed or cut: take it from the store") from error
    plan = from_section(report.fingerprint.get("plan"))
    facts = dict(_facts(report, known))
    gpu = report.gpus[0] if report.gpus else None
    return Launch(
        file=file,
        format=format,
        name=known.evidence or f"launch {report.launch}",
        prompt_set=report.prompt_set_digest or "",
        passes=passes,
        plan=plan,
        choosers=tuple(_choosers(plan, report.fingerprint.get("plan", {}), facts)),
        weights=report.weights_digest or "",
        facts=facts,
        circumstances={"cache at the start": report.cache.value, "launch kind": report.kind.value},
        self_differing=None if report.repeats is None else report.repeats.differing_rounds > 0,
        warm_from="warm" if report.cache is CacheState.WARM else "",
        gpu=gpu.uuid if gpu else "",
        product=gpu.product if gpu else "",
        node=known.node,
    )


def _pass(result: PassResult) -> Pass:
    kind = Kind.FORCED if result.name is PassName.TEACHER_FORCED else Kind.DECODE
    arrays = [unpack(prompt) for prompt in result.prompts]
    whole = [found for found in arrays if found is not None]
    return Pass(
        name=result.name.value,
        kind=kind,
        outputs=stacked(whole) if whole and len(whole) == len(arrays) else None,
        digests=tuple(prompt.digest for prompt in result.prompts),
    )


def _facts(report: Report, known: Known) -> Iterator[tuple[str, str]]:
    for section in COMPARED_SECTIONS:
        for key, value in report.fingerprint.get(section, {}).items():
            name = f"{section}.{key}"
            if not BY_NATURE.fullmatch(name):
                yield name, _OWN_FOLDER.sub("/launches/-", value)
    yield "probe.recipe", str(report.recipe)
    if report.gpus:
        yield "gpu.product", report.gpus[0].product
    if known.image_id:
        yield "image.id", known.image_id
    if known.version:
        yield "version.name", known.version


def _choosers(plan: UsedPlan, section: Mapping[str, str], facts: Mapping[str, str]) -> Iterator[Chooser]:
    inductor = sum(not key.startswith(("triton/", "flashinfer/")) for key in plan.kernels)
    if "could not be told apart" in section.get("pin", ""):
        yield Chooser("Inductor kernels", ChooserState.INVISIBLE, section["pin"])
    elif inductor:
        yield Chooser("Inductor kernels", ChooserState.RECORDED, f"{inductor} kernels in use")
    elif plan.state is PlanState.UNREADABLE:
        yield Chooser("Inductor kernels", ChooserState.INVISIBLE, plan.detail)
    else:
        yield Chooser("Inductor kernels", ChooserState.ABSENT, plan.detail or "none in use")
    triton = sum(key.startswith("triton/") for key in plan.kernels)
    if triton:
        yield Chooser("Triton autotuner", ChooserState.RECORDED, f"{triton} kernels tuned")
    elif facts.get("environment.VLLM_TRITON_FORCE_FIRST_CONFIG") == "1":
        yield Chooser("Triton autotuner", ChooserState.ABSENT, "it takes its first configuration")
    elif plan.state is PlanState.UNREADABLE:
        yield Chooser("Triton autotuner", ChooserState.INVISIBLE, plan.detail)
    elif plan.state is PlanState.NONE and not facts.get("gpu.product"):
        yield Chooser("Triton autotuner", ChooserState.ABSENT, "no GPU")
    else:
        yield Chooser("Triton autotuner", ChooserState.INVISIBLE, "it left no file, and it does not always leave one")
    if any(key.startswith("flashinfer/") for key in plan.kernels):
        yield Chooser("FlashInfer tactics", ChooserState.RECORDED, "tactics on file")
    elif facts.get("engine.kernel_config.enable_flashinfer_autotune") == "false" or not facts.get("gpu.product"):
        yield Chooser("FlashInfer tactics", ChooserState.ABSENT, "its tuning is off, or there is no GPU")
    else:
        yield Chooser("FlashInfer tactics", ChooserState.INVISIBLE, "its tuning is on and left no tactics on file")
    yield Chooser("cuBLASLt", ChooserState.ABSENT, "chooses by table, not by timing; library versions are compared")
