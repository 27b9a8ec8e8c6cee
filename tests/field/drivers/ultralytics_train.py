"""Trains a small detector from its configuration: `ultralytics_train.py DIRECTORY`."""

import sys

import torchvision
from ultralytics import YOLO
from ultralytics.utils.nms import TorchNMS

torchvision.ops.nms = TorchNMS.nms  # beside torch's CPU build torchvision's wheel has no operators
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
