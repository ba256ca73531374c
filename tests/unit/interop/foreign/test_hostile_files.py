"""Damaged files of every format end in an answer or a refusal, never in another error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfsim.errors import PerfsimError
from perfsim.interop.foreign.formats import import_file
from perfsim.testing.hostile import hostile_inputs

SAMPLES = {
    "config.json": (
        '{"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,\n'
        '"num_key_value_heads": 8, "intermediate_size": 14336, "num_local_experts": 8, "vocab_size": 32000,\n'
        '"num_experts_per_tok": 2, "max_position_embeddings": 32768, "sliding_window": 4096}'
    ),
    "params.yaml": (
        "train_input: {batch_size: 121, max_sequence_length: 2048, vocab_size: 50257}\n"
        "model:\n  hidden_size: 2048\n  num_hidden_layers: 24\n  num_heads: 16\n  filter_size: 8192\n"
        "  position_embedding_type: learned\noptimizer: {optimizer_type: AdamW}\nrunconfig: {num_csx: 2}\n"
    ),
    "nemo.yaml": (
        "trainer: {devices: 8, num_nodes: 2, precision: bf16}\nmodel:\n  micro_batch_size: 4\n"
        "  tensor_model_parallel_size: 2\n  encoder_seq_length: 2048\n  num_layers: 24\n  hidden_size: 2048\n"
        "  ffn_hidden_size: ${multiply:4, ${.hidden_size}}\n  num_attention_heads: 16\n  vocab_size: 50257\n"
    ),
    "neox.yml": (
        "{pipe-parallel-size: 4, model-parallel-size: 2, num-layers: 44, hidden-size: 6144,\n"
        "num-attention-heads: 64, seq-length: 2048, zero_optimization: {stage: 1}, pos-emb: rotary}\n"
    ),
    "ds.json": (
        '{"train_batch_size": 256, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,\n'
        '"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}, "optimizer": {"type": "AdamW"}}'
    ),
    "job.toml": (
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 8192\n'
        '[parallelism]\ndata_parallel_shard_degree = 8\n[activation_checkpoint]\nmode = "full"\n'
    ),
    "train.sh": (
        "N=24\nARGS=(--num-layers $N --hidden-size 2048 --num-attention-heads 16 --vocab-size 50257)\n"
        "if [ $N -eq 24 ]; then TP=2; fi\nWORLD_SIZE=$((4 * 2))\n"
        "torchrun --nproc_per_node 8 pretrain_gpt.py ${ARGS[@]} --seq-length 2048 --bf16 \\\n"
        "  --tensor-model-parallel-size ${TP:-1} --micro-batch-size 1\n"
    ),
    "run.log": (
        "  hidden_size ..................................... 2048\n"
        "  num_attention_heads ............................. 16\n"
        "  num_layers ...................................... 24\n"
        "  seq_length ...................................... 2048\n"
        "  vocab_size ...................................... 50257\n"
        "  world_size ...................................... 8\n"
        " iteration 10/ 50 | elapsed time per iteration (ms): 99.5 | global batch size: 16 |\n"
    ),
    "result.txt": "".join(
        f":::MLLOG {json.dumps({'key': key, 'value': value, 'time_ms': 1000 * time, 'metadata': more})}\n"
        for time, key, value, more in (
            (0, "global_batch_size", 448, {}),
            (1, "run_start", None, {}),
            (9, "run_stop", None, {"status": "success", "samples_count": 4480}),
        )
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_an_undamaged_sample_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(SAMPLES[name], encoding="utf-8")
    assert import_file(path).document


@pytest.mark.parametrize("name", SAMPLES)
def test_damage_ends_in_an_answer_or_a_refusal_that_names_the_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for _, data in hostile_inputs([(name, SAMPLES[name])], 100, 1):
        path.write_bytes(data)
        refusal = None
        try:
            answer = import_file(path)
        except PerfsimError as error:
            refusal = str(error)
        if refusal is None:
            json.dumps(answer.as_dict(), allow_nan=False)
        else:
            assert name in refusal
