"""Hugging Face's scripts and trainers."""

import data
import data_of_libraries

from cases.case import DRIVERS, Case, words

CASES = (
    Case(
        "peft-lora",
        "huggingface/peft",
        "src/peft/__init__.py",
        (f"{DRIVERS}/peft_lora.py", "{data}", "{data}/text.txt", "{data}/out"),
        paths=("src",),
        data=lambda directory: (data.tiny_llama(directory), data.text_file(directory / "text.txt", 12_000)),
    ),
    Case(
        "transformers-run-clm",
        "huggingface/transformers",
        "examples/pytorch/language-modeling/run_clm.py",
        words(
            "run_clm.py --config_name {data} --tokenizer_name {data} --train_file {data}/train.txt --validation_file"
            " {data}/valid.txt --do_train --do_eval --output_dir {data}/out --max_steps 60 --block_size 64 --use_cpu"
            " --per_device_train_batch_size 4 --gradient_accumulation_steps 4 --logging_steps 1 --report_to none"
            " --eval_strategy steps --eval_steps 20 --learning_rate 1e-3 --max_eval_samples 16"
        ),
        part="examples/pytorch/language-modeling",
        prepare=data_of_libraries.accuracy,
        data=lambda directory: (
            data.tiny_llama(directory),
            data.text_file(directory / "train.txt", 20_000),
            data.text_file(directory / "valid.txt", 2_000, seed=1),
        ),
    ),
    Case(
        "transformers-run-clm-no-trainer",
        "huggingface/transformers",
        "examples/pytorch/language-modeling/run_clm_no_trainer.py",
        words(
            "run_clm_no_trainer.py --model_name_or_path {data} --train_file {data}/train.txt --validation_file"
            " {data}/valid.txt --output_dir {data}/out --max_train_steps 60 --block_size 64"
            " --per_device_train_batch_size 4"
            " --gradient_accumulation_steps 2 --learning_rate 1e-3 --num_warmup_steps 5 --seed 1"
        ),
        part="examples/pytorch/language-modeling",
        data=lambda directory: (
            data.tiny_llama(directory),
            data.text_file(directory / "train.txt", 20_000),
            data.text_file(directory / "valid.txt", 2_000, seed=1),
        ),
        env={"ACCELERATE_USE_CPU": "1"},
    ),
    Case(
        "accelerate-nlp",
        "huggingface/accelerate",
        "examples/complete_nlp_example.py",
        words("complete_nlp_example.py --cpu"),
        part="examples",
        prepare=lambda code: (data.glue(code), data_of_libraries.accuracy(code, "glue")),
        ranks=2,
        env={"FIELD_STEPS": "60"},
    ),
    *(
        Case(
            f"trl-{name}",
            "huggingface/trl",
            f"trl/scripts/{name}.py",
            words(
                f"trl/scripts/{name}.py --model_name_or_path {{data}} --dataset_name {{data}}/{name}"
                f" --output_dir {{data}}/out"
                " --max_steps 30 --logging_steps 1 --report_to none --use_cpu --bf16 False"
                f" --learning_rate 1e-3 --save_strategy no {flags}"
            ),
            paths=(".",),
            data=lambda directory: data.preferences(directory),
        )
        for name, flags in (
            ("sft", "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --max_length 96"),
            ("dpo", "--per_device_train_batch_size 4 --gradient_accumulation_steps 1 --max_length 96"),
            ("kto", "--per_device_train_batch_size 4 --gradient_accumulation_steps 1 --max_length 96"),
            (
                "grpo",
                "--per_device_train_batch_size 4 --num_generations 4 --max_completion_length 8"
                " --reward_funcs think_format_reward",
            ),
            ("reward", "--per_device_train_batch_size 4 --gradient_accumulation_steps 1 --max_length 96"),
        )
    ),
    Case(
        "diffusers-unconditional",
        "huggingface/diffusers",
        "examples/unconditional_image_generation/train_unconditional.py",
        words(
            "train_unconditional.py --train_data_dir {data}/images --model_config_name_or_path {data}/unet"
            " --resolution 16"
            " --train_batch_size 4 --num_epochs 5 --gradient_accumulation_steps 2 --use_ema --lr_warmup_steps 5"
            " --output_dir {data}/out --save_images_epochs 100 --save_model_epochs 100 --ddpm_num_inference_steps 2"
            " --ddpm_num_steps 20 --checkpointing_steps 1000"
        ),
        part="examples/unconditional_image_generation",
        data=lambda directory: data.unet(directory),
        env={"ACCELERATE_USE_CPU": "1"},
    ),
)
