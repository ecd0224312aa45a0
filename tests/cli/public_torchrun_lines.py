"""Command lines of torchrun from public READMEs and launch scripts, each with its source.

Shell variables are replaced by values, for example $RANK by 1 and $head_node_ip by 10.0.0.1. Long
arguments of a script are shortened.
"""

from __future__ import annotations

# The source (a repository and a file in it), and the line as a shell splits it.
LINES = [
    (
        "karpathy/nanoGPT README.md, reproducing GPT-2",
        "torchrun --standalone --nproc_per_node=8 train.py config/train_gpt2.py",
    ),
    (
        "karpathy/nanoGPT README.md, two nodes, the first",
        "torchrun --nproc_per_node=8 --nnodes=2 --node_rank=0 --master_addr=123.456.123.456 "
        "--master_port=1234 train.py",
    ),
    (
        "karpathy/nanoGPT README.md, two nodes, the second",
        "torchrun --nproc_per_node=8 --nnodes=2 --node_rank=1 --master_addr=123.456.123.456 "
        "--master_port=1234 train.py",
    ),
    (
        "karpathy/nanochat runs/speedrun.sh, pretraining",
        "torchrun --standalone --nproc_per_node=8 -m scripts.base_train -- --depth=26 "
        "--target-param-data-ratio=8.25 --device-batch-size=16 --fp8 --run=dummy",
    ),
    (
        "karpathy/nanochat runs/speedrun.sh, evaluation",
        "torchrun --standalone --nproc_per_node=8 -m scripts.chat_eval -- -i sft",
    ),
    (
        "KellerJordan/modded-nanogpt run.sh",
        "torchrun --standalone --nproc_per_node=1 train_gpt.py",
    ),
    (
        "pytorch/torchtitan run_train.sh",
        'torchrun --nproc_per_node=8 --rdzv_backend c10d --rdzv_endpoint="localhost:0" '
        "--local-ranks-filter 0 --role rank --tee 3 -m torchtitan.train --module llama3 "
        "--config llama3_debugmodel",
    ),
    (
        "pytorch/torchtitan multinode_trainer.slurm",
        'torchrun --nnodes 4 --nproc_per_node 8 --rdzv_id 101 --rdzv_backend c10d --rdzv_endpoint "'
        '10.0.0.1:29500" -m torchtitan.train --module llama3 --config llama3_debugmodel',
    ),
    (
        "fla-org/flame train.sh",
        "torchrun --nnodes=1 --nproc_per_node=8 --rdzv_backend c10d --rdzv_endpoint localhost:0 "
        "--local-ranks-filter 0 --role rank --tee 3 train.py --job.config_file train.toml",
    ),
    (
        "pytorch/examples distributed/ddp-tutorial-series/slurm/sbatch_run.sh",
        "torchrun --nnodes 4 --nproc_per_node 1 --rdzv_id 2024 --rdzv_backend c10d "
        "--rdzv_endpoint 10.0.0.1:29500 /shared/examples/multinode_torchrun.py 50 10",
    ),
    (
        "pytorch/examples distributed/tensor_parallelism/run_example.sh",
        'torchrun --nnodes=1 --nproc_per_node=4 --rdzv_id=101 --rdzv_endpoint="localhost:5972" '
        "two_d_parallel_example.py",
    ),
    (
        "pytorch/examples distributed/FSDP2/README.md",
        "torchrun --nproc_per_node 2 train.py",
    ),
    (
        "pytorch/examples distributed/ddp/README.md",
        "torchrun --nnodes=1 --nproc_per_node=8 example.py",
    ),
    (
        "mlfoundations/open_clip README.md, one node",
        "torchrun --nproc_per_node 4 -m training.main "
        "--train-data '/data/cc12m/cc12m-train-{0000..2175}.tar' --batch-size 320 --workers 4",
    ),
    (
        "mlfoundations/open_clip README.md, the node of $HOSTE_NODE_ADDR",
        "torchrun --nproc_per_node=4 --rdzv_endpoint=node0 -m training.main "
        "--dataset-type webdataset --precision amp",
    ),
    (
        "huggingface/pytorch-image-models distributed_train.sh",
        "torchrun --nproc-per-node=4 train.py --data-dir /data/imagenet --model seresnet34",
    ),
    (
        "NVIDIA/Megatron-LM examples/gpt3/train_gpt3_175b_distributed.sh",
        "torchrun --nproc_per_node 8 --nnodes 1 --master_addr localhost --master_port 6000 "
        "examples/classes/pretrain_gpt.py --num-layers 96 --split 949,50,1",
    ),
    (
        "deepseek-ai/DeepSeek-V3 README.md",
        "torchrun --nnodes 2 --nproc-per-node 8 --node-rank 1 --master-addr 10.0.0.1 generate.py "
        "--ckpt-path /path/to/DeepSeek-V3-Demo --interactive --temperature 0.7",
    ),
    (
        "meta-llama/llama README.md",
        "torchrun --nproc_per_node 1 example_chat_completion.py --ckpt_dir llama-2-7b-chat/ "
        "--tokenizer_path tokenizer.model --max_seq_len 512 --max_batch_size 6",
    ),
    (
        "NVlabs/edm README.md",
        "torchrun --standalone --nproc_per_node=2 generate.py --outdir=out "
        "--seeds=0-999 --batch=64",
    ),
    (
        "lm-sys/FastChat docs/training.md",
        "torchrun --nproc_per_node=4 --master_port=9778 fastchat/train/train_flant5.py --bf16 True "
        '--fsdp "full_shard auto_wrap" --gradient_checkpointing True',
    ),
    (
        "allenai/OLMo-core README.md",
        "torchrun --nproc-per-node=8 src/scripts/official/OLMo2/OLMo-2-0325-32B-train.py "
        "--save-folder=/path/to/save/checkpoints",
    ),
    (
        "open-compass/VLMEvalKit scripts/run.sh",
        "torchrun --nproc-per-node=8 run.py --data MMBench_DEV_EN --model idefics_9b_instruct",
    ),
    (
        "ZetangForward/CrazyCode projects/custom_llama/scripts/run_vqllama_embed_quantizer.sh",
        "torchrun --nnodes=1:4 --nproc-per-node=4 --max-restarts=3 --rdzv_id=123 "
        "--rdzv_backend=c10d --rdzv_endpoint=worker-0:1234 train_pl_v2.py",
    ),
    (
        "tedyhabtegebrial/ultra_light_trainer run_example.sh",
        "torchrun --nnodes=1 --max_restarts=0 --rdzv_id=31415 --rdzv_backend=c10d "
        "--nproc_per_node=gpu --rdzv_endpoint=localhost:29403 -m examples.train_single_gpu",
    ),
    (
        "greenlet/mllm dist_scripts/s_00_03_distrib_elastic.sh",
        "torchrun --nnodes=1 --nproc_per_node=4 --rdzv_id=100 --rdzv_backend=c10d "
        "--rdzv_endpoint=localhost:29400 s_00_03_distrib_elastic.py",
    ),
    (
        "scout-op/CDVG VisTA/VisTA/run.sh",
        "torchrun --standalone --nproc_per_node=gpu --nnodes=1 train.py",
    ),
]
