"""Trains a small detector from its configuration: `ultralytics_train.py DIRECTORY`."""

import sys

from ultralytics import YOLO

for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
    del sys.modules[name]  # beside torch's CPU build its wheel has no operators; without it ultralytics uses its own
directory = sys.argv[1]
YOLO("yolov8n.yaml").train(
    data=f"{directory}/boxes.yaml",
    epochs=6,
    imgsz=64,
    batch=8,
    device="cpu",
    workers=0,
    project=f"{directory}/runs",
    plots=False,
    amp=False,
    seed=1,
    optimizer="AdamW",
    lr0=1e-3,
)
