"""A tool that trains models: one table of its settings and our fields, read and written.

Each row of a tool's table has the tool's keys and the field of ours that they say, with the value both ways.
`import`, `--emit` and the table of keys in the documentation all come from these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from perfsim.base.errors import LayoutError, Problem
from perfsim.base.sizes import MOST_DEVICES, MOST_WIDTH
from perfsim.base.spec import DatedSpec
from perfsim.interop import WRITTEN, tool_named
from perfsim.interop.nearest_model import Beyond, Gap, Nearest
from perfsim.interop.source import Settings, Source, Syntax, nested
from perfsim.specs.layout import OFFLOADS, Layout, ParallelLayout, text_of, written
from perfsim.specs.model import Experts, LatentAttention, TransformerConfig
from perfsim.specs.optimizers import OPTIMIZERS
from perfsim.specs.precisions import PRECISIONS
from perfsim.specs.recipe import Recipe
from perfsim.specs.runtime import Runtime
from perfsim.specs.trainers import SAID_BY, Limits, ToolName
from perfsim.strategies.plan import Plan

Chosen = Plan[Any, Any]
"""The plan that a tool is told, whose layout is of the type that the tool names."""


@dataclass(frozen=True)
class Step:
    """Steps of one batch size that were measured in a run."""

    global_batch_size: int
    step_time_s: float
    """Median over the iterations."""
    iterations: int


@dataclass(frozen=True)
class Reading:
    """What a tool's reader took from a file."""

    settings: Settings
    model: Nearest | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    """Fields of a `Recipe` and of its `Runtime`."""
    layout: Layout | None = None
    devices: int | None = None
    steps: tuple[Step, ...] = ()
    intervals: tuple[Step, ...] = ()
    """The same steps where each batch size is divided into intervals, so that their spread is seen."""
    points: dict[str, Any] | None = None
    """A convergence case."""
    name: str = ""

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """All gaps; those that change the model come first."""
        of_model = [] if self.model is None else self.model.gaps()
        return tuple(sorted([*of_model, *self.settings.gaps], key=lambda gap: not gap.changes_model))


GATED = ("swiglu", "fast-swiglu", "geglu", "reglu", "glu", "bilinear")
"""Activations that multiply two halves of a product."""
VOCABULARIES = {
    **dict.fromkeys(("gpt2bpetokenizer", "hfgpt2tokenizer", "tiktokentokenizer"), 50257),
    **dict.fromkeys(("megatron-gpt-345m", "gpt2"), 50257),
    "bertwordpiecelowercase": 30522,
    "bertwordpiececase": 28996,
    "hftokenizer": 50277,
    "charleveltokenizer": 512,
    **dict.fromkeys(("llama2tokenizer", "llama-2", "mixtral", "mistral-7b"), 32000),
    **dict.fromkeys(("spmtokenizer", "hfllamatokenizer"), 32000),
    **dict.fromkeys(("llama-3", "llama3"), 128256),
}
"""Vocabularies by the name of a tokenizer or of its file; `HFTokenizer` means the one of GPT-NeoX-20B."""
Write = Callable[[Chosen], Any]
"""The tool's value for a plan; None leaves the setting out."""
Read = Callable[[Settings], Any]
"""Our value; None where the file does not tell it."""
Test = Callable[[Chosen], Any]
"""Whether something holds for a plan."""
Limit = Callable[[Chosen], str]
"""What a tool cannot express of a plan, in words; empty where the plan does not need it."""
_SPECS: Mapping[str, Any] = {
    "model": TransformerConfig,
    "model.experts": Experts,
    "model.latent_attention": LatentAttention,
    "recipe": Recipe,
    "runtime": Runtime,
    "layout": ParallelLayout,
}


@cache
def _range_of(field: str) -> tuple[str, int, int]:
    """The type of a field in JSON with its least and greatest number."""
    owner, _, name = field.rpartition(".")
    hints = get_type_hints(Beyond) | get_type_hints(_SPECS.get(owner, Beyond), include_extras=True)
    schema = TypeAdapter(hints.get(name, int)).json_schema()
    number = schema["anyOf"][0] if "anyOf" in schema else schema
    return number["type"], number.get("minimum", 1), number.get("maximum", MOST_DEVICES)


_SAID_WITH: Mapping[str, tuple[str, ...]] = {
    **{f"layout.{axis}": (f"layout.{degree}",) for axis, degree in SAID_BY.items()},
    "layout.sequence_parallel": ("layout.tensor",),
    "layout.expert": ("model.experts",),
    "layout.expert_tensor": ("model.experts",),
    "model.experts.top_groups": ("model.experts.groups",),
    "recipe.expert_capacity": ("model.experts",),
    "recipe.routing": ("model.experts",),
    "runtime.dispatcher": ("model.experts",),
    "runtime.grouped_products": ("model.experts",),
    "runtime.overlap_grad_reduce": ("layout.replicas",),
    "runtime.overlap_param_gather": ("layout.replicas",),
    # Tools overlap products with the exchanges of tensor ranks only with sequence parallelism.
    "runtime.overlap_tensor": ("layout.sequence_parallel",),
}
"""Fields that say something only where others are in use."""


def _parts(chosen: Chosen) -> str | None:
    """What a model has that no dense layer with heads that fill the hidden size has; None: nothing."""
    model = chosen.job.model
    usual_widths = (None, model.hidden_size // model.num_attention_heads)
    parts = {
        "experts": model.experts,
        "latent attention": model.latent_attention,
        "heads of a width of their own": model.head_dim not in usual_widths,
        "attention in a window": model.sliding_window is not None,
        "multi-token prediction": model.mtp_num_layers,
        "norms of queries and keys": model.qk_layernorm,
    }
    return ", ".join(name for name, has in parts.items() if has) or None


_DERIVED: Mapping[str, Write] = {
    # The recipe may leave the batch open, and the runtime the dispatcher of tokens.
    "recipe.global_batch_size": lambda c: c.job.global_batch_size,
    "runtime.dispatcher": lambda c: c.job.recipe.expert_dispatcher,
    "runtime.overlap_param_gather": lambda c: c.job.runtime.overlap_param_gather and c.layout.zero_stage > 0,
    "runtime.overlap_tensor": lambda c: c.job.recipe.overlaps_tensor,
    "model.parts": _parts,
    # Tools refuse sequences that are longer.
    "model.max_position_embeddings": lambda c: max(
        c.job.model.max_position_embeddings, c.job.recipe.seq_length
    ),
}
_NO_SETTINGS = {
    *("runtime", "framework", *DatedSpec.model_fields),
    *("batch_size_per_device", "recompute", "routing_spread", "line", "tool", "zero_stages", "by_rule"),
    *("tokens", "tokens_per_parameter", "target_loss", "later", "software_release"),
}
"""Fields of recipes and runtimes that describe, choose among plans, or tell how long a run is."""
SETTINGS: Mapping[str, Any] = {
    f"{owner}.{name}": known.default
    for owner, spec in (("recipe", Recipe), ("runtime", Runtime))
    for name, known in spec.model_fields.items()
    if name not in _NO_SETTINGS
} | {"runtime.dispatcher": "all_to_all"}
"""The others by their paths, each with the value that asks nothing of a tool."""


def _in_use(value: Any) -> bool:
    """Whether a value asks something of a tool: it is not absent, off or a degree of one."""
    return value is True or value not in (None, 0, 1, "none")


def _field_of(chosen: Chosen, field: str) -> Any:
    """The value of a field of a plan; None where a part on the way is None, or where it says nothing."""
    if not all(_in_use(_field_of(chosen, other)) for other in _SAID_WITH.get(field, ())):
        return None
    if field in _DERIVED:
        return _DERIVED[field](chosen)
    value: Any = chosen if field.startswith(("layout.", "system.")) else chosen.job
    for name in field.split("."):
        value = None if value is None else getattr(value, name)
    return value


_VARIANTS: Mapping[str, str] = {
    **{name: name for name in OPTIMIZERS},
    **dict.fromkeys(("fusedadam", "cpuadam", "cpu_adam", "torchadam"), "adam"),
}
"""What any tool calls an optimizer, folded, by ours."""


@dataclass(frozen=True)
class Row:
    """One setting of a tool; the methods below make the usual rows."""

    field: str
    """What it says: `model.num_layers`, or words in brackets where no field of ours says it."""
    keys: str = ""
    """Its keys, apart by blanks: the first is written, the others are older spellings."""
    write: Write | None = None
    """None: it is only read."""
    read: Read | None = None
    """None: it follows from other settings, so that reading knows it and needs nothing from it."""
    refusal: Limit | None = None
    """Without what this names another step would run than the predicted one: the plan is refused."""
    gap: Limit | None = None
    """Of what this names the emitted text says that it is missing."""

    @classmethod
    def same(
        cls,
        field: str,
        keys: str,
        *,
        usual: Any = None,
        default: Any = None,
        needed: bool = False,
        least: int | None = None,
        most: int | None = None,
        read: Read | None = None,
        write: Write | None = None,
    ) -> Row:
        """A setting that has our value; it is not written where it is the `usual` one.

        A file without it has the `default`, which may be a function as `read` is; a `needed` one must be
        there. Whole numbers are in the range of our field, unless it is given here.
        """
        names = keys.split()

        def written(chosen: Chosen) -> Any:
            value = _field_of(chosen, field)
            return None if value == usual and type(value) is type(usual) else value

        def number(settings: Settings) -> Any:
            if settings.raw(*names) is None and not needed:
                return default(settings) if callable(default) else default
            kind, low, high = _range_of(field)
            if kind == "boolean":
                return settings.flag(*names)
            if kind == "number":
                return settings.number(*names)
            bounds = {"least": low if least is None else least, "most": high if most is None else most}
            return settings.needed(*names, **bounds)

        return cls(field, keys, write or written, read or number)

    @classmethod
    def word(
        cls, field: str, keys: str, words: Mapping[Any, Any], *, default: Any = None, **only_read: Any
    ) -> Row:
        """A setting whose words stand for ours, or that is True for one of ours; other words are errors."""
        names = keys.split()
        ours = {word: value for value, word in reversed([*words.items()])} | only_read

        def read(settings: Settings) -> Any:
            if True in ours:
                return ours[True] if settings.flag(*names) else default
            return settings.choice(tuple(names), ours, default)

        return cls.spelled(field, keys, words, read)

    @classmethod
    def spelled(cls, field: str, keys: str, words: Mapping[Any, Any], read: Read | None = None) -> Row:
        """A setting with a word for some of our values (without any it is only read), read in its own way."""
        return cls(field, keys, (lambda chosen: words.get(_field_of(chosen, field))) if words else None, read)

    @classmethod
    def known(cls, keys: str) -> Row:
        """Settings that change nothing, or follow from others."""
        return cls("(nothing of a prediction)", keys)

    @classmethod
    def noted(cls, words: str, key: str) -> Row:
        """A setting that a file may have and perfsim cannot express; `{}` in the words is its value."""

        def read(settings: Settings) -> None:
            value = settings.raw(key)
            if value is not None and str(value).casefold() not in ("0", "1", "false"):
                settings.gap(words.format(value))

        return cls(f"({words})", key, read=read)

    @classmethod
    def lacks(
        cls, field: str, words: str, *, unless: Collection[Any] | None = None, when: Test | None = None
    ) -> Row:
        """What the emitted text cannot say: a field that is in use, or that has none of the values `unless`.

        This is so in plans for which `when` holds. Words may name the value, `{}`, and fields of the plan,
        `{c.layout.tensor}`.
        """

        def limit(chosen: Chosen) -> str:
            value = _field_of(chosen, field)
            needed = _in_use(value) if unless is None else value is not None and value not in unless
            return words.format(value, c=chosen) if needed and (when is None or when(chosen)) else ""

        return cls(field, gap=limit)

    @classmethod
    def refuses(cls, field: str, words: str, **limits: Any) -> Row:
        """The same of plans that are refused, because another step would run."""
        return cls(field, refusal=cls.lacks(field, words, **limits).gap)

    @classmethod
    def optimizer(
        cls, tool: str, keys: str, *, default: str = "adam", word: Callable[[Settings], str] | None = None
    ) -> Row:
        """The row of the optimizer; `word` finds its name where it is no value of a key."""
        names = {ours: name for ours, row in OPTIMIZERS.items() if (name := getattr(row, tool)) is not None}

        def read(settings: Settings) -> str:
            text = settings.text(*keys.split()) if word is None else word(settings)
            if text and text.casefold() not in _VARIANTS:
                settings.gap(f"the optimizer {text[:40]}; described as {default}")
            return _VARIANTS.get(text.casefold(), default)

        missing = cls.refuses("recipe.optimizer", "it has no optimizer {}", unless=names)
        return replace(missing, keys=keys, write=lambda c: names.get(c.job.recipe.optimizer), read=read)

    @classmethod
    def grad_bucket(cls, keys: str, *, size: int | None = None) -> Row:
        """The row of a bucket of gradients in elements of the reduced precision, or of `size` bytes each."""

        def write(chosen: Chosen) -> int | None:
            bucket_bytes = chosen.job.runtime.grad_bucket
            of_element = PRECISIONS[chosen.job.recipe.reduce_precision or "fp32"].bytes
            return None if bucket_bytes is None else int(bucket_bytes / of_element)

        def read(settings: Settings) -> str | None:
            elements = settings.integer(*keys.split())
            of_element = size or (2 if "recipe.reduce_precision" in settings.ours else 4)
            return None if elements is None else f"{elements * of_element} B"

        return cls("runtime.grad_bucket", keys, write, read)


def when(has: Read, *rows: Row) -> tuple[Row, ...]:
    """Rows that are read from files for which `has` holds."""

    def limited(row: Row) -> Row:
        read = row.read
        return row if read is None else replace(row, read=lambda s: read(s) if has(s) else None)

    return tuple(map(limited, rows))


def only(test: Test, value: Any = True) -> Write:
    """A value, or what it gives as a function of the plan, in plans for which the test holds."""

    def write(chosen: Chosen) -> Any:
        if not test(chosen):
            return None
        return value(chosen) if callable(value) else value

    return write


def shared_heads(chosen: Chosen) -> int | None:
    """Heads of keys and values, where several heads of queries share one."""
    model = chosen.job.model
    return None if model.query_groups == model.num_attention_heads else model.query_groups


def layers_of_stage(chosen: Chosen) -> int:
    """Layers of a virtual stage where all have as many."""
    return int(chosen.job.model.num_layers // chosen.layout.num_stages)


def qk_norm(key: str, write: Write | None = None) -> Row:
    """The row of a flag for norms of queries and keys, which all heads share."""

    def read(settings: Settings) -> Any:
        ours = settings.ours
        width = ours.get("model.head_dim") or ours["model.hidden_size"] // ours["model.num_attention_heads"]
        return ours["model.norm_vectors"] * 2 * width if settings.flag(key) else 0

    return Row("model.qk_norm", key, write, read)


def experts(keys: str, *rows: Row) -> tuple[Row, ...]:
    """The row of the number of experts, where 0 and 1 mean none, and rows of models that have some."""

    def read(settings: Settings) -> int | None:
        count = settings.integer(*keys.split(), least=0, most=MOST_WIDTH)
        return count if count and count > 1 else None

    # Experts are as wide as the MLP of other layers where no row says otherwise.
    usual = Row("model.experts.ffn_hidden_size", read=lambda s: s.ours.get("model.ffn_hidden_size"))
    number = Row.same("model.experts.num_experts", keys, read=read)
    return number, *when(lambda s: s.ours.get(number.field), usual, *rows)


def share_on_cpu(key: str) -> Row:
    """The row of the share of the optimizer that the CPU keeps; a description has all of it there."""

    def read(settings: Settings) -> None:
        share = settings.number(key)
        if share not in (None, 1.0) and settings.ours.get("layout.offload_optimizer", "none") != "none":
            settings.gap(f"the optimizer of a share of {share:g} on the CPU; all is described")

    return Row("(a share of the optimizer on the CPU)", key, read=read)


SHAPE = (
    "{0.num_layers} layers, hidden {0.hidden_size}, {0.num_attention_heads} heads, {0.query_groups} key and "
    "value heads, MLP {0.ffn_hidden_size}, vocabulary {0.vocab_size}"
)
"""What a gap tells of a model that stands in the tool's code."""
TF32_PRODUCTS = Row.lacks(
    "recipe.precision",
    "{} products; PyTorch's torch.backends.cuda.matmul.allow_tf32 switches them on",
    unless={*PRECISIONS} - {"tf32"},
)
"""The gap of tools that leave TF32 to PyTorch."""


def _not_run(name: ToolName, chosen: Chosen) -> list[str]:
    """What of a layout on GPUs neither the release of the plan's runtime nor the newest one runs."""
    if not isinstance(chosen.layout, ParallelLayout):
        return []
    of_runtime = chosen.job.runtime.searched
    releases = [of_runtime] if of_runtime is not None and of_runtime.tool == name else []
    known = (limits.lacks(chosen.layout, chosen.job) for limits in (*releases, Limits(name)))
    return [text for lacking in known for text in lacking][:1]


@dataclass(frozen=True)
class Tool:
    """A tool: how its files are recognised and read, its settings, and how a plan is written for it."""

    title: str
    """What its files are, as comments of an imported description say."""
    sign: str
    """What its files are recognised by, for messages."""
    syntaxes: tuple[Syntax, ...]
    recognise: Callable[[Any], bool]
    """Whether a parsed document (or the text) is of this format."""
    read: Callable[[Source, Any], Reading]
    rows: tuple[Row, ...] = ()
    told: tuple[str, ...] = ("data",)
    """Fields of a layout that rows of other fields tell, or that follow from the number of ranks."""
    runs: type[Layout] | None = None
    """The layouts of plans that it is told; None where it is only read."""
    render: Callable[[list[str], Mapping[str, Any]], str] = lambda *_: ""
    """The text of comments and of the tree of settings, in the order of the table."""
    start: Callable[[Chosen], str] = lambda _: ""
    """The comment that says how the settings are used."""
    comment: str = "# "
    """Begins a line of comment."""

    def refusals_of_job(self, chosen: Chosen) -> list[str]:
        """Why it cannot run a plan whose layout it runs, in words; empty where it can."""
        return [text for row in self.rows if row.refusal is not None and (text := row.refusal(chosen))]

    def refusals(self, chosen: Chosen, name: ToolName) -> list[str]:
        """Why it cannot run a plan, in words; empty where it can."""
        if self.runs is None or not isinstance(chosen.layout, self.runs):
            machines = f"on {'GPUs' if self.runs is ParallelLayout else 'wafers'}"
            return [f"it trains {machines}; {chosen.system.name} is a {chosen.system.kind}"]
        refusals = [*self.refusals_of_job(chosen), *_not_run(name, chosen)]
        # Of fields in use that no row writes, refuses or names as a gap another layout would run.
        said = {*self.told, *(row.field.removeprefix("layout.") for row in self.rows)}
        said |= set(OFFLOADS) if "offloads" in said else set()
        unsaid = (known for known in fields(chosen.layout) if known.name not in said)
        in_use = (known.name for known in unsaid if getattr(chosen.layout, known.name) != known.default)
        return [*refusals, *(f"nothing of it says {axis}" for axis in in_use)]

    def gaps(self, chosen: Chosen) -> Iterator[tuple[str, str]]:
        """What the emitted text cannot say of a plan: fields, and words for them."""
        for row in self.rows:
            if row.gap is not None and (text := row.gap(chosen)):
                yield row.field, text
        owners = ("recipe.", "runtime.") if self.runs is ParallelLayout else ("recipe.",)
        said = {row.field for row in self.rows if row.write or row.gap or row.refusal}
        for name in (name for name in SETTINGS if name.startswith(owners) and name not in said):
            value = _field_of(chosen, name)
            if value not in (None, SETTINGS[name]):
                yield name, f"{name.partition('.')[2]} {written(value)}"

    def emit(self, chosen: Chosen, name: ToolName) -> str:
        """The settings that run a plan. Raises LayoutError with all reasons why it cannot run it."""
        layout = text_of(chosen.layout)
        if reasons := self.refusals(chosen, name):
            others = (known for known in WRITTEN if not tool_named(known).refusals(chosen, known))
            help_text = " or ".join(f"--emit {known}" for known in others)
            help_text = help_text or "no tool whose files are written runs it: plan it without --emit"
            searched = chosen.job.runtime.searched
            on_gpus = self.runs is ParallelLayout and isinstance(chosen.layout, ParallelLayout)
            other = on_gpus and (searched is None or searched.tool != name)
            if other and not self.refusals_of_job(chosen):
                help_text = f"--runs-on {name} plans what it runs"
            raise LayoutError(
                [Problem(f"{self.title} cannot run {layout}: {text}", help=help_text) for text in reasons]
            )
        job = chosen.job
        machine = chosen.system.machine(chosen.layout.num_devices)
        comments = [
            f"{job.model.name}, recipe {job.recipe.name}, on {machine}",
            f"{chosen.strategy}: {layout}, batch {job.global_batch_size}",
            self.start(chosen),
            "not part of a plan: data, tokenizer, learning rate, length of the run, checkpoints",
            *(f"not expressible: {text}" for _, text in self.gaps(chosen)),
        ]
        values = ((row.keys.split()[0], row.write(chosen)) for row in self.rows if row.write is not None)
        stated = {key: value for key, value in values if value is not None}
        return self.render([f"{self.comment}{comment}" for comment in comments], nested(stated))
