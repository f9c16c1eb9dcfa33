"""Two readings of quantised weights, ours and the reference's: the same values, and faults told as such."""

from __future__ import annotations

import json
import shutil

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from aerie.engine.config import load_config
from aerie.engine.gguf.block_groups import BlockGroups
from aerie.engine.quantised import QuantisedTensor
from aerie.engine.weight_files import find_tensors
from aerie.engine.weights import Weights
from aerie.verify.blocks_reference import DeviceKind, in_eight_bits, quantised
from aerie.verify.reading_check import ReadingError, check_reading
from aerie.verify.reference_folder import facts_and_weights
from aerie.verify.safetensors_reference import SafetensorsFiles
from tests import gguf_files, quantised_folders
from tests.engine.test_quantised_files import AGAIN, AS_BF16, CASES, NAME, ROW_SCALES
from tests.gguf_files import Source, matrices_in
