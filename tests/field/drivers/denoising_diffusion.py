"""Trains a tiny diffusion model with the package's own Trainer: `denoising_diffusion.py IMAGES RESULTS`."""

import sys

from denoising_diffusion_pytorch import GaussianDiffusion, Trainer, Unet

model = Unet(dim=8, dim_mults=(1, 2), flash_attn=False)
diffusion = GaussianDiffusion(model, image_size=32, timesteps=20, sampling_timesteps=4)
trainer = Trainer(
    diffusion,
    sys.argv[1],
    train_batch_size=4,
    train_lr=1e-4,
    train_num_steps=60,
    gradient_accumulate_every=2,
    save_and_sample_every=1000,
    num_fid_samples=4,
    calculate_fid=False,
    results_folder=sys.argv[2],
    amp=False,
)
trainer.train()
