"""The recipe of a question that names none: that of the model's age, printed with the answer."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import perfsim as ps
from perfsim.cli import main
from perfsim.prediction.question import question_of
from perfsim.specs.model import TransformerConfig
from perfsim.specs.recipe import Recipe

CATALOG = ps.Catalog()


def recipe_for(recipe: str | None, model: TransformerConfig) -> Recipe:
    """The recipe of a question."""
    return question_of({"model": model, "system": "dgx-h100", "devices": 8, "recipe": recipe}).recipe


@pytest.mark.parametrize(
    ("model", "recipe", "tokens", "attention", "dropout"),
    [
        ("gpt3_175b", "llm_2021", 2048, "standard", True),
        ("llama_65b", "llm_2021", 2048, "standard", True),
        ("llama2_70b", "llm_2024", 4096, "flash", False),
        ("llama31_70b", "llm_2024", 8192, "flash", False),
        ("mixtral_8x7b", "llm_2024", 8192, "flash", False),
        ("bert_large", "llm_2021", 512, "standard", True),
    ],
)
def test_a_model_is_trained_as_models_of_its_age_were(
    model: str, recipe: str, tokens: int, attention: str, dropout: bool
) -> None:
    chosen = recipe_for(None, CATALOG.models[model])
    assert (chosen.name, chosen.seq_length) == (recipe, tokens)
    assert (chosen.runtime.attention, chosen.dropout) == (attention, dropout)


def test_a_model_that_does_not_say_when_it_was_published_is_trained_as_before() -> None:
    unknown = CATALOG.models["llama31_70b"].model_copy(update={"released": None})
    assert recipe_for(None, unknown).name == "llm_2021"


def test_a_recipe_that_is_named_is_taken_and_one_of_an_age_has_the_models_positions() -> None:
    llama = CATALOG.models["llama2_70b"]
    assert recipe_for("gpt3_pretraining", llama) == CATALOG.recipes["gpt3_pretraining"]
    assert recipe_for("llm_2024", llama).seq_length == 4096


def test_every_model_of_the_catalogue_says_when_it_was_published() -> None:
    assert [model.name for model in CATALOG.models.values() if model.released is None] == []


def test_a_run_says_what_it_trains() -> None:
    asked = ["run", "--model", "llama2_70b", "--system", "dgx-h100", "--devices", "64", "--batch", "64"]
    layout = "tp=8,pp=4,dp=2,mbs=1,sp=true,recompute=full"
    said = " ".join(CliRunner().invoke(main, [*asked, "--layout", layout]).output.split())
    assert "llm_2024: sequences of 4,096 tokens, bf16, flash attention, no dropout" in said
