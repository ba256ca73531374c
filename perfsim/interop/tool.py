"""A tool that trains models: a table from the fields of a plan to the tool's settings."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from perfsim.base.errors import InputError, LayoutError, Problem
from perfsim.specs.hardware import SystemSpec
from perfsim.specs.layout import Layout
from perfsim.specs.recipe import Job


class Chosen(Protocol):
    """What is to be run: the fields of a plan that a tool needs."""

    @property
    def strategy(self) -> str: ...

    @property
    def job(self) -> Job: ...

    @property
    def layout(self) -> Any: ...

    @property
    def system(self) -> SystemSpec: ...

    @property
    def num_microbatches(self) -> int: ...


Setting = tuple[str, Callable[[Chosen], Any]]
"""A setting of a tool, by its flag or its dotted path, and its value for a plan; None leaves it out."""
Limit = Callable[[Chosen], str]
"""What a tool cannot express of a plan, in words; empty where the plan does not need it."""
Values = Sequence[tuple[str, Any]]
"""Names of settings with their values, in the order of the table."""
Render = Callable[[Sequence[str], Values], str]
"""The text of comments and settings in the format of a tool."""


@dataclass(frozen=True)
class Tool:
    """A tool, the kind of layout that it runs, its settings, and what it cannot express."""

    name: str
    title: str
    layout_type: type[Layout]
    runs_on: str
    settings: tuple[Setting, ...]
    refusals: tuple[Limit, ...]
    """Without these another step would run than the predicted one: the plan is refused."""
    gaps: tuple[Limit, ...]
    """Of these the emitted text says that they are missing."""
    render: Render
    how_to_start: Callable[[Chosen], str]
    """The comment that says how the settings are used."""

    def emit(self, chosen: Chosen, remark: str = "") -> str:
        """The settings that run a plan, under a remark. Raises InputError for a plan that it cannot run.

        LayoutError is for a layout of the right kind, so that another one may do.
        """
        if not isinstance(chosen.layout, self.layout_type):
            raise InputError(
                f"{self.title} trains on {self.runs_on}; {chosen.system.name} is a {chosen.system.kind}"
            )
        layout = chosen.layout.short
        if refused := [text for limit in self.refusals if (text := limit(chosen))]:
            raise LayoutError([Problem(f"{self.title} cannot run {layout}: {text}") for text in refused])
        job = chosen.job
        devices = chosen.layout.num_devices
        comments = [
            f"{job.model.name}, recipe {job.recipe.name}, on {chosen.system.machine(devices)}",
            f"{chosen.strategy}: {layout}, batch {job.global_batch_size}",
            *filter(None, [remark]),
            self.how_to_start(chosen),
            "not part of a plan: data, tokenizer, learning rate, length of the run, checkpoints",
            *(f"not expressible: {text}" for limit in self.gaps if (text := limit(chosen))),
        ]
        values = [(name, value(chosen)) for name, value in self.settings]
        return self.render(comments, [(name, value) for name, value in values if value is not None])


def nested(values: Values) -> dict[str, Any]:
    """Settings by dotted path as a tree of mappings."""
    tree: dict[str, Any] = {}
    for path, value in values:
        *groups, name = path.split(".")
        branch = tree
        for group in groups:
            branch = branch.setdefault(group, {})
        branch[name] = value
    return tree


def commented(comments: Sequence[str]) -> list[str]:
    """Comments as lines that begin with a hash."""
    return [f"# {comment}" for comment in comments]


def bucket_elements(chosen: Chosen) -> int | None:
    """Elements of a bucket of gradients; None where the recipe gives no size."""
    recipe = chosen.job.recipe
    if recipe.runtime.grad_bucket is None:
        return None
    return int(recipe.runtime.grad_bucket / (2 if recipe.reduce_precision in ("bf16", "fp16") else 4))


def where(needed: Callable[[Chosen], Any], words: str) -> Limit:
    """The limit of plans for which `needed` holds; `words` may name fields of it: `{c.layout.tensor}`."""
    return lambda chosen: words.format(c=chosen) if needed(chosen) else ""


def only_optimizers(known: Container[str]) -> Limit:
    """The refusal of a tool that has only some of the optimizers."""
    return where(
        lambda c: c.job.recipe.optimizer not in known, "it has no optimizer {c.job.recipe.optimizer}"
    )


def equal_dense_layers(chosen: Chosen) -> str:
    """The refusal of a tool whose settings describe dense layers with heads that fill the hidden size."""
    model = chosen.job.model
    parts = {
        "experts": model.experts is not None,
        "latent attention": model.latent_attention is not None,
        "heads of a width of their own": model.head_dim
        not in (None, model.hidden_size // model.num_attention_heads),
        "attention in a window": model.sliding_window is not None,
        "multi-token prediction": bool(model.mtp_num_layers),
        "norms of queries and keys": model.qk_layernorm,
    }
    named = [name for name, has in parts.items() if has]
    return f"its settings here describe no {' or '.join(named)}" if named else ""


tf32_products = where(
    lambda c: c.job.recipe.precision == "tf32",
    "tf32 products; PyTorch's torch.backends.cuda.matmul.allow_tf32 switches them on",
)
"""The gap of tools that leave TF32 to PyTorch."""


def reduced_otherwise(*known: str) -> Limit:
    """The gap of a tool that reduces gradients only in these precisions."""

    def gap(chosen: Chosen) -> str:
        wire = chosen.job.recipe.reduce_precision or "fp32"
        return "" if wire in known else f"gradients reduced in {wire}"

    return gap
