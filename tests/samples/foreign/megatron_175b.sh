#!/bin/bash
# The "175B" model
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
NUM_NODES=16
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINT_PATH=$1
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
)
GPT_MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --attention-backend auto # Can use (flash/fused/unfused/local)
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 1536
    --fp16
    --lr 6.0e-5
)
if [ "$NUM_NODES" -eq 16 ]; then PP=16; else PP=8; fi
MODEL_PARALLEL_ARGS="--tensor-model-parallel-size 8 --pipeline-model-parallel-size $PP"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${GPT_MODEL_ARGS[@]} ${TRAINING_ARGS[@]} $MODEL_PARALLEL_ARGS \
    --vocab-size 50257 --save "$CHECKPOINT_PATH"
