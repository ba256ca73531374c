"""`perfsim prove`: the plans of a request, their proofs and the overall result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfsim.catalog import Catalog, default_catalog
from perfsim.errors import InputError, Problem
from perfsim.hardware import SystemSpec
from perfsim.interop.models import model_named
from perfsim.machines import build_topology, machine
from perfsim.proof.catalogue import Case, catalogue_cases
from perfsim.proof.execution.serial import STEPS
from perfsim.proof.proof import Proof, finite, prove_plan
from perfsim.proof.provers import prover
from perfsim.proof.small_plans import small_plan
from perfsim.strategies import Plan, strategy
from perfsim.studies.loading import load_study
from perfsim.studies.runner import run_study
from perfsim.sweeps.runner import is_sweep
from perfsim.workload import Job, Layout, TransformerConfig

RECIPE = "gpt3_pretraining"
DEFAULT_ORDERS = 10

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """A request of the command line."""

    target: str
    """A model or a study."""
    strategy: str = ""
    layout: str = ""
    devices: int | None = None
    batch: int | None = None
    orders: int = DEFAULT_ORDERS
    seed: int = 0


@dataclass(frozen=True)
class ProofResult:
    """All proofs of a request."""

    target: str
    orders: int
    proofs: tuple[Proof, ...]

    @property
    def passed(self) -> bool:
        """Whether every plan passed."""
        return all(proof.passed for proof in self.proofs)

    def as_dict(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        names = dict.fromkeys(proof.strategy for proof in self.proofs)
        return {
            "target": self.target,
            "passed": self.passed,
            "max_relative_error": _worst(self.proofs),
            "orders": self.orders,
            "steps": STEPS,
            "tasks": sum(proof.tasks for proof in self.proofs),
            "strategies": {name: self._of(name) for name in names},
        }

    def _of(self, name: str) -> dict[str, Any]:
        proofs = [proof for proof in self.proofs if proof.strategy == name]
        return {
            "passed": all(proof.passed for proof in proofs),
            "max_relative_error": _worst(proofs),
            "tasks": sum(proof.tasks for proof in proofs),
            "layouts": [proof.as_dict() for proof in proofs],
        }


def _worst(proofs: Sequence[Proof]) -> float | None:
    """The largest error of all comparisons; None if there were none."""
    errors = [proof.max_relative_error for proof in proofs if proof.max_relative_error is not None]
    return finite(max(errors, default=None))


def prove_all(request: Request, progress: Progress = lambda _: None) -> ProofResult:
    """Prove a layout, the plans of a study, or the whole catalogue."""
    proofs = []
    plans = list(plans_of(request))
    for done, plan in enumerate(plans):
        progress(f"{done} of {len(plans)} layouts: {plan.strategy} on {plan.topology.num_devices} ranks")
        proofs.append(prove_plan(plan, request.orders, request.seed))
    if not proofs:
        raise InputError(f"nothing to prove for strategy {request.strategy}")
    return ProofResult(request.target, request.orders, tuple(proofs))


def plans_of(request: Request) -> Iterator[Plan]:
    """The small plans of a request."""
    catalog = default_catalog()
    if request.strategy:
        strategy(request.strategy)  # refuses an unknown name before anything slow
    _refuse_idle_options(request)
    if _is_sweep(request.target, catalog):
        raise InputError(
            [
                Problem(
                    f"{request.target} is a sweep, and sweeps are not supported",
                    help="prove a model, or a study with the candidates of one of its points",
                )
            ]
        )
    if _is_study(request.target, catalog):
        yield from _of_study(request, catalog)
        return
    model = model_named(request.target, catalog)
    if request.layout:
        yield _of_layout(request, model, catalog)
        return
    for case in catalogue_cases(experts=model.experts is not None):
        if request.strategy in ("", case.strategy):
            yield plan_of_case(case, model, catalog)


def _refuse_idle_options(request: Request) -> None:
    """Refuse --devices and --batch without a layout, where they would be ignored."""
    given = {"--devices": request.devices, "--batch": request.batch}
    idle = [name for name, value in given.items() if value is not None and not request.layout]
    if idle:
        verb = "is" if len(idle) == 1 else "are"
        help_ = "add --layout, or leave out " + " and ".join(idle)
        raise InputError([Problem(f"{' and '.join(idle)} {verb} for a --layout", help=help_)])


def _is_study(target: str, catalog: Catalog) -> bool:
    """Whether the target is a study; a name that a model has too means the model."""
    if target in catalog.names("study"):
        return target not in catalog.names("model")
    return target.endswith((".yaml", ".yml")) and _has_key(target, "candidates")


def _is_sweep(target: str, catalog: Catalog) -> bool:
    """Whether the target is a sweep."""
    if target.endswith((".yaml", ".yml")):
        return _has_key(target, "study")
    is_model = target in catalog.names("model")
    return not is_model and target in catalog.names("study") and is_sweep(target, catalog)


def _has_key(path: str, key: str) -> bool:
    try:
        with Path(path).open(encoding="utf-8") as file:
            return any(line.startswith(f"{key}:") for line in file)
    except (OSError, UnicodeDecodeError):
        return False


def _of_study(request: Request, catalog: Catalog) -> Iterator[Plan]:
    """The plan that a study finds for each candidate, on a small model."""
    if request.layout:
        raise InputError([Problem("--layout is for a model", help="a study chooses its layouts itself")])
    spec = load_study(request.target, catalog)
    run = run_study(spec, [request.strategy] if request.strategy else [])
    for answered in run.answered:
        plan = answered.evaluation.plan
        chosen = strategy(plan.strategy)
        yield small_plan(chosen, plan.job, plan.topology, plan.layout, plan.num_microbatches)


def _of_layout(request: Request, model: TransformerConfig, catalog: Catalog) -> Plan:
    name = request.strategy or "3d"
    chosen = strategy(name)
    of_kind = prover(chosen.system_kind)
    system = catalog.system(of_kind.system)
    layout = machine(chosen.system_kind).parse_layout(request.layout, request.devices or 1)
    recipe = catalog.recipe(RECIPE)
    sequences = layout.data * layout.micro_batch_size
    batch = request.batch or sequences * 2 * layout.pipeline
    if batch % sequences and of_kind.even_batches:
        raise InputError(f"--batch {batch} is not a multiple of data x micro_batch_size, {sequences}")
    topology = build_topology(system, request.devices or layout.num_devices)
    return small_plan(chosen, Job(model, recipe, batch), topology, layout, max(1, -(-batch // sequences)))


def plan_of_case(case: Case, model: TransformerConfig, catalog: Catalog) -> Plan:
    """The small plan of a case of the catalogue."""
    system: SystemSpec = catalog.system(prover(strategy(case.strategy).system_kind).system)
    recipe = catalog.recipe(RECIPE).model_copy(
        update={
            "overlap_grad_reduce": case.overlap,
            "overlap_param_gather": case.ahead,
            "expert_capacity": case.capacity,
            "recompute_keeps": case.keeps,
        }
    )
    chosen, topology = strategy(case.strategy), build_topology(system, case.devices)
    job = Job(model, recipe, 8 * case.devices)
    layout: Layout = case.layout or next(iter(chosen.layouts(job, topology)))
    return small_plan(chosen, job, topology, layout, case.microbatches)
