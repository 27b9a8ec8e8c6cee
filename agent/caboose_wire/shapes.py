"""The shapes of a report's arrays, checked against the layers and modules that the rank's Hello named.

Design
------
`decode` knows a message alone, so it checks an array's bytes against its own shape. Whether that shape fits the job is
known only with the Hello, and is checked here before anything reads the array: readers index by layer and module, and
put the arrays of all ranks side by side. Names that are not in the contract are left alone; nobody reads them.
"""

from caboose_wire.errors import WireError
from caboose_wire.messages import HISTOGRAM_BINS, LAYER_ARRAYS, MODULE_ARRAYS, StepReport

WHOLE_ARRAYS = frozenset({"local_grad_norm", "layer_fingerprint"})
"""Layer arrays that a rank sends for all layers: they are compared layer by layer between ranks."""


def check_shapes(report: StepReport, num_layers: int, num_modules: int) -> None:
    """Raises WireError where an array does not fit a job of this many layers and a rank of this many modules."""
    for name, array in report.arrays.items():
        if name in LAYER_ARRAYS:
            _check_columns(name, array.shape)
            _check_layers(name, len(array), report.slices.get(name), num_layers)
        elif name in MODULE_ARRAYS:
            _check_columns(name, array.shape)
            if len(array) > num_modules:
                raise WireError("layer_count", f"{name} has {len(array)} rows, the Hello has {num_modules} modules")


def _check_columns(name: str, shape: tuple[int, ...]) -> None:
    expected = (HISTOGRAM_BINS,) if name.endswith("_histogram") else ()
    if shape[1:] != expected:
        wanted = f"{HISTOGRAM_BINS} columns" if expected else "one dimension"
        raise WireError("shape", f"{name} has shape {list(shape)}, expected {wanted}")


def _check_layers(name: str, num_rows: int, place: tuple[int, int] | None, num_layers: int) -> None:
    start, stride = place or (0, 1)
    is_whole = num_rows == num_layers if place is None or name in WHOLE_ARRAYS else True
    if not stride or not is_whole or start + (num_rows - 1) * stride >= num_layers:
        raise WireError("layer_count", f"{name} has {num_rows} rows from layer {start} by {stride}, of {num_layers}")
