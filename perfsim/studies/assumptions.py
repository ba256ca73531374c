"""The inputs of an answer with their sources: every value of every description that the study uses."""

from collections.abc import Iterator, Mapping
from typing import Any

from perfsim.base.dates import EQUAL
from perfsim.base.errors import CatalogError
from perfsim.base.spec import PROSE, CatalogSpec
from perfsim.base.text import covering
from perfsim.base.units import dimension_of, format_quantity
from perfsim.catalog import Catalog, default_catalog
from perfsim.machines import machine_of
from perfsim.specs.calibration import Calibration
from perfsim.specs.prices import NOT_GIVEN, amount_text
from perfsim.studies.answers import Assumption, Production, leaves
from perfsim.studies.batches import Target
from perfsim.studies.loading import dimension_at
from perfsim.studies.spec import StudySpec

BATCHES = ("global_batch_size", "batch_size_per_device")
UNLISTED = PROSE | {"fit", "name", "noun", "date", "runtime", "device", *BATCHES}
"""Fields of a description that are no inputs, or are told of each candidate."""
_NOT_CONSTANTS = PROSE | {"name", "fit", "kind", "device", "cases", "peak_profile"}
DIGITS = 4


def _constants_of(calibration: Calibration, catalog: Catalog) -> list[Assumption]:
    """One entry per fit with all its constants, and one per constant that has a source or an assumption."""
    topic = f"calibration {calibration.name}"
    fitted: dict[str, list[str]] = {group: [] for group in calibration.fit}
    from_sources = []
    for path, value in leaves(calibration.model_dump(exclude=set(_NOT_CONSTANTS))):
        if value is None or value == ():
            continue
        group = covering(path, calibration.fit)
        source = covering(path, calibration.sources)
        assumed = covering(path, calibration.assumed)
        text = _text(path, value)
        if group:
            errors = calibration.fit[group].standard_errors
            name = path.removeprefix(group).lstrip(".")
            error = errors.get(path, errors.get(name))
            said = f"{name} {text}" if name else text
            fitted[group].append(said if error is None else f"{said} (standard error {100 * error:.1f} %)")
        elif assumed:
            basis = f"assumed: {calibration.assumed[assumed]}"
            from_sources.append(Assumption(topic, path, text, basis, "assumption"))
        elif source:
            basis = _citation(calibration.sources[source], catalog)
            from_sources.append(Assumption(topic, path, text, basis, "datasheet"))
    fits = []
    for group, record in calibration.fit.items():
        # The constants of a fit, how well it meets its points, and how well it knows the constants.
        text = record.words
        shares = [100 * error for error in record.standard_errors.values()]
        if fitted[group]:
            if not shares:
                text += ", no standard errors"
            elif len(fitted[group]) > 1:
                text += f", standard errors {min(shares):.1f} to {max(shares):.1f} %"
            text = f"{', '.join(fitted[group])}; {text}"
        basis = f"{_citation(record.table, catalog)}; {record.command}"
        fits.append(Assumption(topic, group, text, basis, "fit"))
    return [*fits, *from_sources]


def _text(path: str, value: Any) -> str:
    """A constant with its unit; each record of a list stands in brackets."""
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(path, item) for item in value)
    if isinstance(value, Mapping):
        inside = (f"{name} {_text(name, item)}" for name, item in value.items() if item is not None)
        return f"[{'; '.join(inside)}]"
    if isinstance(value, float) and (dimension := dimension_of(path)):
        return format_quantity(value, dimension, DIGITS)
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else str("none" if value is None else value)


def _citation(source_id: str, catalog: Catalog) -> str:
    """The citation of a registered source; for a user's own file its name."""
    return str(catalog.sources().get(source_id) or source_id)


SAME_PRODUCTION = Assumption(
    "production",
    "same ratio on every machine",
    "no comparison moves",
    "the published production runs are all on GPUs. The ratio covers slow steps, not queue, "
    "compilation, restarts and lost work. A CS-2's constants come from logs of training runs, a "
    "GPU's from benchmarks, so for a CS-2 it may be too low",
    "assumption",
)
NO_DEFAULT = "no default, because it would decide the comparison; the study may give it"


def assumptions_of(spec: StudySpec) -> tuple[Assumption, ...]:
    """Inputs of an answer: critical batch, model, recipe, systems, fitted constants, cluster calibrations."""
    catalog = default_catalog()
    assumptions = [*_target(Target.of_study(spec)), *_described(catalog, "model", spec.model)]
    assumptions += _described(catalog, "recipe", spec.recipe)
    for known in {(known.candidate.system.name, known.runtime.name): known for known in spec.points}.values():
        system = known.candidate.system
        software = machine_of(system).software(system, known.runtime)
        day = spec.equal_day if spec.as_of == EQUAL else spec.as_of
        chosen = f"as of {day}" if day else "named by the question, its recipe or the rule"
        assumptions.append(
            Assumption(f"system {system.name}", "software", software.name, chosen, "assumption")
        )
        assumptions += _described(catalog, "system", system)
        assumptions += _described(catalog, "device", system.device)
        if system.device.calibration is not None:
            assumptions += _constants_of(system.device.calibration, catalog)
        for calibration in machine_of(system).calibrations(system, known.question.job.recipe):
            assumptions += _constants_of(calibration, catalog)
    for production in filter(None, dict.fromkeys(map(Production.of, spec.points))):
        value = f"{production.text} times the rate of healthy steps, on every machine"
        assumptions += [
            Assumption("production", "ratio to healthy steps", value, production.source, "fit"),
            SAME_PRODUCTION,
        ]
    assumptions += _money(spec)
    for candidate in spec.candidates:
        if candidate.wall_clock is not None:
            assumptions += _described(catalog, "wall_clock", candidate.wall_clock)
        if candidate.cluster_calibration is not None:
            # The scale fitted to the user's measured steps, with its cases.
            scale = candidate.cluster_calibration
            cases = "; ".join(
                f"{case.id}: measured {case.measured_s:.4g} s, predicted {case.predicted_s:.4g} s, "
                f"{100 * case.residual:+.1f} % after scaling"
                for case in scale.cases
            )
            assumptions.append(Assumption(f"calibration {scale.name}", "scale", scale.note, cases, "fit"))
            assumptions += _constants_of(scale, catalog)
    return tuple(dict.fromkeys(assumptions))


def _target(target: Target) -> Iterator[Assumption]:
    critical = target.critical
    low, high = (tokens / 1e6 for tokens in critical.band_tokens)
    known = f"{critical.tokens / 1e6:.1f} M tokens ({low:.1f} to {high:.1f} M, 90 %)"
    value = "none: the number of tokens is given" if critical.given_length else known
    yield Assumption("convergence", "critical batch", value, critical.source, "fit")
    if target.loss is not None:
        loss = target.loss
        law = loss.law
        value = f"{law.name}: {loss.tokens:.3g} tokens to {loss.loss:g} nats; {loss.text}"
        yield Assumption("convergence", "loss law", value, f"{law.source}; its runs: {law.data}", "fit")
    for note in critical.notes:
        yield Assumption("convergence", "critical batch", "remark", note, "assumption")
    yield Assumption(
        "convergence",
        "same training recipe on every machine",
        "equal samples to the target at equal batch",
        "another optimizer changes the samples by up to 1.8 times at large batch (MLPerf reference runs)",
        "assumption",
    )
    yield Assumption(
        "convergence",
        "no failures, no stragglers, no compilation",
        "goodput 1 on every machine",
        "assumed for every machine alike; the time in production, and the whole run where a candidate names "
        "a wall clock, are reported separately",
        "assumption",
    )


def _money(spec: StudySpec) -> Iterator[Assumption]:
    """Prices and energy, with their source, or that they are not given."""
    given = spec.prices
    for system in dict.fromkeys(candidate.system.name for candidate in spec.candidates):
        machines = [candidate for candidate in spec.candidates if candidate.system.name == system]
        prices = [spec.prices_of(candidate).machines.get(system) for candidate in machines]
        for price in dict.fromkeys(price for price in prices if price is not None):
            source = ", ".join(filter(None, [price.source, price.date]))
            text = price.text(given.currency)
            yield Assumption("money", f"price of {system}", text, source, "assumption")
        if not any(prices):
            yield Assumption("money", f"price of {system}", NOT_GIVEN, NO_DEFAULT, "assumption")
    units = {"pue": "", "tariff": f" {given.currency} a kWh", "carbon": " kg CO2e a kWh"}
    for name, unit in units.items():
        value = getattr(given, name)
        text = NOT_GIVEN if value is None else f"{amount_text(value)}{unit}"
        source = NO_DEFAULT if value is None else given.source
        yield Assumption("money", name, text, source, "assumption")


def _described(catalog: Catalog, kind: str, described: CatalogSpec) -> list[Assumption]:
    """Values of a description with their sources, and those that the question gives in place of them."""
    name = described.name.partition(" (changed)")[0].partition(" with ")[0]
    topic = f"{kind} {name}"
    source = "given by the question"
    listed: dict[str, Any] = {}
    told: dict[str, Assumption] = {}
    try:
        listed = dict(leaves(catalog.load(kind, name).model_dump(), "", UNLISTED))
        for row in catalog.describe(name, kind):
            named = getattr(getattr(described, row.path, None), "name", row.value_text)
            if row.source_or_assumption and row.path != "runtime" and named == row.value_text:
                basis = "assumption" if row.assumed else "datasheet"
                told[row.path] = Assumption(topic, row.path, named, row.source_or_assumption, basis)
    except CatalogError:
        source = "the study's own file"
        told = {"": Assumption(kind, name, "defined inside the study", source, "assumption")}
    for path, value in leaves(described.model_dump(exclude_defaults=not listed), "", UNLISTED):
        if listed.get(path) != value:
            dimension = dimension_at(described, path) if isinstance(value, float) else None
            text = format_quantity(value, dimension, DIGITS) if dimension else _text("", value)
            told[path] = Assumption(topic, path, text, source, "assumption")
    return list(told.values())
