"""How a job is divided over devices: layouts of GPUs and of wafers, what they share, and their text."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_args, get_origin, get_type_hints

from perfsim.base.errors import LayoutError, Problem
from perfsim.base.sizes import MOST_LAYERS
from perfsim.base.text import did_you_mean

RECOMPUTED: Mapping[str, frozenset[str]] = {
    "none": frozenset(),
    "norms": frozenset({"layernorm", "moe_act"}),
    "latents": frozenset({"mla_up_proj"}),
    "latents+norms": frozenset({"mla_up_proj", "layernorm", "moe_act"}),
    "selective": frozenset({"core_attn"}),
    "mlp": frozenset({"mlp", "moe"}),
    "latents+mlp": frozenset({"mla_up_proj", "mlp", "moe"}),
    "full": frozenset({"core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act"}),
}
"""The modules of a layer that each mode computes again, as `--recompute-modules` of Megatron-Core names them:
the attention core, norms, up-projections of latent attention, the MLP, experts, and their activation."""
OF_MODULES = tuple(mode for mode in RECOMPUTED if mode not in ("none", "selective", "full"))
"""Modes that tools without a choice of modules do not have."""
OF_LATENTS = tuple(mode for mode in OF_MODULES if "mla_up_proj" in RECOMPUTED[mode])
"""Modes that only models with latent attention have."""
if TYPE_CHECKING:
    Recompute = str
else:
    Recompute = Literal[tuple(RECOMPUTED)]


def recompute_of(modules: Collection[str]) -> Recompute | None:
    """The mode that computes these modules again and the fewest others; None: none but `full` does."""
    modes = [mode for mode, known in RECOMPUTED.items() if mode != "full" and known.issuperset(modules)]
    return min(modes, key=lambda mode: len(RECOMPUTED[mode]), default=None)


ContextExchange = Literal["ring", "all_to_all"]
EXCHANGES: tuple[ContextExchange, ...] = get_args(ContextExchange)
Place = Literal["none", "cpu", "nvme"]
"""Where offloaded states are: nowhere but on the device, in the memory of its host, or on its drives."""


class Layout(Protocol):
    """How a job is divided over devices; the interface common to all kinds of layout.

    `tensor` ranks compute each layer together, a batch passes through `pipeline` ranks, and `data` replicas
    each train on a share of the batch. A layout is a dataclass, so that `replace` makes another one of it.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def tensor(self) -> int: ...

    @property
    def pipeline(self) -> int: ...

    @property
    def data(self) -> int: ...

    @property
    def zero_stage(self) -> int:
        """ZeRO stage: how much of the training state is sharded over the replicas [1910.02054]; 0: none."""

    @property
    def micro_batch_size(self) -> int: ...

    @property
    def recompute(self) -> Recompute: ...

    @property
    def num_devices(self) -> int: ...

    def as_dict(self, num_microbatches: int) -> dict[str, Any]:
        """Its fields under the names of the JSON interface."""


def layers_of_stages(pattern: str) -> tuple[int, ...]:
    """Layers of each virtual stage of a pipeline in Megatron-Core's notation, such as `Et*3|(tt|)*29t|L`.

    E is the embedding, t a layer, L the LM head with the loss; stages are separated by |, in the order of the
    forward pass, and x*3 or (tt|)*3 repeats. Raises LayoutError.
    """
    advice = "write layers such as 3-4x2-3, or stages such as Et*3|(t*4|)*2t*3L"
    text = pattern.replace(",", "").replace(" ", "")
    while repeated := re.search(r"\(([^()]*)\)\*(\d{1,4})|(\w)\*(\d{1,4})", text):
        group = repeated[1] or repeated[3] or ""
        times = int(repeated[2] or repeated[4])
        if len(group) * times > 2 * MOST_LAYERS:
            raise LayoutError(f"{repeated[0]!r} repeats more than {MOST_LAYERS} layers", advice)
        text = text[: repeated.start()] + group * times + text[repeated.end() :]
    if unknown := re.search(r"[^EtL|]", text):
        known = "E (embedding), t (layer), L (loss), | (next stage), *3 and (..)*3 (repeat)"
        raise LayoutError(f"{unknown[0]!r} in {pattern[:60]!r} is none of {known}", advice)
    stages = text.split("|")
    if text.count("E") > 1 or text.count("L") > 1 or "E" in text[1:] or "L" in text[:-1]:
        message = f"{pattern[:60]!r}: the embedding E begins the first stage, the loss L ends the last"
        raise LayoutError(message, advice)
    return tuple(stage.count("t") for stage in stages)


@dataclass(frozen=True, slots=True)
class _Axis:
    """What the package knows about one field of `ParallelLayout`, besides its rules (`three_d/legal.py`)."""

    help: str
    default: Any
    short: str = ""
    """Its name in texts such as `tp=8`; empty where it has none but its own."""
    degree: bool = False
    """Whether it is a number of ranks among which something is divided."""
    offload: bool = False
    """Whether it says where a part of the memory is; each value needs less of the device than the last."""
    group: str = ""
    """Fields of one group are written to JSON together, where one is not at its default; empty: always."""


def _axis(default: Any, help_text: str, **known: Any) -> Any:
    """A field of the layout with its row of `AXES`."""
    return field(default=default, metadata={"axis": _Axis(help_text, default, **known)})


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """A layout on GPUs: degrees, schedule, micro-batch and memory mode; one field and its row an axis.

    Ranks: tensor innermost, then context, then data, then pipeline; consecutive ranks fill a node. Fields
    without a group stand first in JSON.
    """

    tensor: int = _axis(1, "Ranks that share every layer.", short="tp", degree=True)
    pipeline: int = _axis(1, "Pipeline stages.", short="pp", degree=True)
    data: int = _axis(1, "Replicas of the model.", short="dp", degree=True)
    virtual_pipeline: int = _axis(
        1, "Groups of layers of a rank, under an interleaved schedule.", short="vpp"
    )
    sequence_parallel: bool = _axis(
        False, "Whether tensor ranks also share the positions of norms and dropout.", short="sp"
    )
    zero_stage: int = _axis(
        0, "What replicas shard: 1 optimizer states, 2 also gradients, 3 also parameters.", short="zero"
    )
    schedule: str = _axis("1f1b", "Order of the passes of micro-batches.")
    micro_batch_size: int = _axis(1, "Sequences that pass a replica at once.", short="mbs")
    recompute: Recompute = _axis(
        "none",
        "What the backward computes again: none, norms (with the activation of experts), latents (the "
        "up-projections of latent attention), selective (attention core), mlp (or experts), full (layers).",
    )
    layers_per_stage: tuple[int, ...] | None = _axis(
        None, "Layers of each virtual stage in the order of the forward pass; None: as many in each."
    )
    recompute_every: int = _axis(1, "Of the layers of each virtual stage, one in so many is recomputed.")
    context: int = _axis(
        1,
        "Ranks that share every sequence, each with an equal part of its positions.",
        short="cp",
        degree=True,
        group="context",
    )
    context_exchange: ContextExchange = _axis(
        "ring",
        "What context ranks exchange: keys and values around a ring, or heads against positions.",
        group="context",
    )
    shard_group: int | None = _axis(
        None,
        "Ranks over which ZeRO shards, of which there are several groups; None: all with the same "
        "parameters.",
        group="shards",
    )
    offload_optimizer: Place = _axis(
        "none",
        "Where the CPU keeps and updates the optimizer's states; gradients of ZeRO 2 and 3 go there too.",
        group="offload_optimizer",
        offload=True,
    )
    offload_param: Place = _axis(
        "none", "Where the parameters are that ZeRO 3 gathers.", group="offload_param", offload=True
    )
    offload_activations: Literal["none", "cpu"] = _axis(
        "none",
        "Where the activations are that a layer keeps for its backward.",
        group="offload_activations",
        offload=True,
    )
    expert: int = _axis(
        1,
        "Ranks of a stage (tensor, context and data) over which the experts of a layer are divided.",
        short="ep",
        degree=True,
        group="expert",
    )
    expert_tensor: int = _axis(
        1,
        "Ranks that share every expert, as tensor ranks share other layers.",
        short="etp",
        degree=True,
        group="expert",
    )

    def __str__(self) -> str:
        return text_of(self)

    @property
    def num_devices(self) -> int:
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def replicas(self) -> int:
        """Ranks that hold the same parameters: context ranks times data."""
        return self.context * self.data

    @property
    def has_replicas(self) -> bool:
        return self.replicas > 1

    @property
    def shards(self) -> int:
        """Ranks over which ZeRO divides a state."""
        return self.replicas if self.shard_group is None else self.shard_group

    @property
    def width(self) -> int:
        """Ranks of one pipeline stage."""
        return self.tensor * self.replicas

    @property
    def expert_replicas(self) -> int:
        """Ranks of a stage that hold the same experts."""
        return self.width // (self.expert * self.expert_tensor)

    @property
    def num_stages(self) -> int:
        return self.pipeline * self.virtual_pipeline

    @property
    def offloads(self) -> dict[str, Place]:
        """The settings of offload that are in use."""
        return {name: where for name in OFFLOADS if (where := getattr(self, name)) != "none"}

    def as_dict(self, num_microbatches: int) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in AXES}
        if self.layers_per_stage is not None:
            values["layers_per_stage"] = list(self.layers_per_stage)
        used = {axis.group for name, axis in AXES.items() if values[name] != axis.default}
        shown = [name for name, axis in AXES.items() if not axis.group or axis.group in used]
        return {"num_microbatches": num_microbatches, **{name: values[name] for name in shown}}


AXES: Mapping[str, _Axis] = {known.name: known.metadata["axis"] for known in fields(ParallelLayout)}
"""Every field of a layout on GPUs, by name."""
OFFLOADS = tuple(name for name, axis in AXES.items() if axis.offload)


@dataclass(frozen=True, slots=True)
class StreamingLayout:
    """A layout of weight streaming: every system computes whole layers on its share of the batch."""

    data: int = 1
    """Systems."""
    micro_batch_size: int = 1
    recompute: Recompute = "none"
    recompute_layers: int = 0
    """Layers that are recomputed together; 0: none, all activations are kept."""
    spill: bool = False
    """Whether activations are stored on activation servers instead of the device."""
    stream_chunks: int = 1
    """Pieces in which a layer is streamed; 1: as a whole."""
    tensor: ClassVar[int] = 1
    pipeline: ClassVar[int] = 1
    zero_stage: ClassVar[int] = 0
    """0, because the systems hold no state to shard."""

    @property
    def num_devices(self) -> int:
        return self.data

    def as_dict(self, num_microbatches: int) -> dict[str, Any]:
        values = asdict(self)
        if self.stream_chunks == 1:
            del values["stream_chunks"]
        return {"num_microbatches": num_microbatches, **values}


# Layouts as text, `tp=8,pp=4,dp=4,mbs=1`: settings by the fields of a layout type, or by short names.

SHORT_NAMES = {axis.short: name for name, axis in AXES.items() if axis.short}
OTHER_NAMES = {"pipeline_layout": "layers_per_stage"}
"""Further names that texts may use."""
_STAGES = re.compile(r"[EtL|()*\d\s]+")
"""A part of `pipeline_layout`."""


def settings(text: str) -> Iterator[tuple[str, str, str]]:
    """The text, long name and value of each setting."""
    parts: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        # Commas may stand inside the stages of `pipeline_layout`, where Megatron-Core ignores them.
        if parts and _STAGES.fullmatch(part) and _long_name(parts[-1]) == "layers_per_stage":
            parts[-1] += part
        else:
            parts.append(part)
    for item in parts:
        yield item, _long_name(item), item.partition("=")[2].strip()


def _long_name(item: str) -> str:
    name = item.partition("=")[0].strip()
    return SHORT_NAMES.get(name, OTHER_NAMES.get(name, name))


def parsed_settings(text: str, layout_type: type) -> dict[str, Any]:
    """The layout fields that a text sets; LayoutError lists all problems."""
    problems: list[Problem] = []
    given: dict[str, Any] = {}
    said: dict[str, str] = {}
    for item, name, value in settings(text):
        try:
            parsed = _parsed(name, value, layout_type)
        except LayoutError as wrong:
            problems += [replace(p, message=f"layout {item!r}: {p.message}") for p in wrong.problems]
            continue
        if name in given:
            problems.append(Problem(f"layout names {name} twice", help=f"keep {said[name]} or {item}"))
        given.setdefault(name, parsed)
        said.setdefault(name, item)
    if text and not (given or problems):
        problems.append(Problem(f"layout {text!r} sets nothing", help="such as tp=8,pp=4,dp=16"))
    if problems:
        raise LayoutError(problems)
    return given


def text_of(layout: Layout) -> str:
    """The text that `parsed_settings` reads as this layout: replicas, and every field not at its default."""
    short = {long: name for name, long in SHORT_NAMES.items()}
    return ",".join(
        f"{short.get(field.name, field.name)}={written(value)}"
        for field in fields(layout)
        if (value := getattr(layout, field.name)) != field.default or field.name == "data"
    )


def text_of_fields(given: Mapping[str, Any]) -> str:
    """The text of a layout from its fields, or from an answer's JSON, which has `num_microbatches`."""
    named = {name: value for name, value in given.items() if name != "num_microbatches" and value is not None}
    return ",".join(f"{name}={written(value)}" for name, value in named.items())


def written(value: Any) -> str:
    """The value of a setting as text: 3-4x20-3 for stages of 3 layers, of 4 twenty times, and of 3."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, list | tuple):
        return str(value)
    runs = ((str(one), len([*same])) for one, same in groupby(value))
    return "-".join(f"{one}x{times}" if times > 2 else "-".join([one] * times) for one, times in runs)


def _parsed(name: str, value: str, layout_type: type) -> Any:
    defaults: dict[str, Any] = {field.name: field.default for field in fields(layout_type)}
    if name not in defaults:
        others = {**SHORT_NAMES, **OTHER_NAMES}
        known = [*(other for other, long in others.items() if long in defaults), *defaults]
        shown = re.match(rf"({'|'.join(known)})(\d+)", name)  # as tables show it
        hint = f"write {shown[1]}={shown[2]}, with commas" if shown else did_you_mean(name, known)
        raise LayoutError("unknown name", hint)
    kind = get_type_hints(layout_type)[name]
    if kind is str:
        return value
    if kind is bool:
        if value.lower() not in ("true", "false", "1", "0"):
            raise LayoutError(f"{value!r} is not a truth value", "write true or false")
        return value.lower() in ("true", "1")
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise LayoutError(f"{value!r}", f"allowed: {', '.join(get_args(kind))}")
        return value
    if kind in (int, int | None):
        default = defaults[name]
        return _whole_number(value, least=1 if default is None else min(1, default))
    if not re.search("[a-wyzA-Z|]", value):  # 10-11x2-12 instead of Et*10|(t*11|)*2t*12L
        return tuple(layers for part in value.split("-") for layers in _repeated(part))
    return layers_of_stages(value)


def _repeated(part: str) -> list[int]:
    """The layers of one stage, such as 4, or of stages alike, such as 4x20."""
    layers, is_repeated, times = part.partition("x")
    count = _whole_number(times, least=1) if is_repeated else 1
    if count > MOST_LAYERS:
        raise LayoutError(f"{part!r} repeats more than {MOST_LAYERS} stages")
    return [_whole_number(layers, least=0)] * count


def _whole_number(value: str, least: int) -> int:
    try:
        number = int(value)
    except ValueError:
        raise LayoutError(f"{value!r} is not a whole number", "write for example tp=8") from None
    if number < least:
        raise LayoutError(f"{number} is less than {least}", f"write {least} or more")
    return number
