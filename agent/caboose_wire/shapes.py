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
COLUMNS: dict[str, tuple[int, ...]] = {
    name: (HISTOGRAM_BINS,) if name.endswith("_histogram") else () for name in LAYER_ARRAYS | MODULE_ARRAYS
}
"""The shape of a row, by array."""


def check_shapes(report: StepReport, num_layers: int, num_modules: int) -> None:
    """Raises WireError where an array does not fit a job of this many layers and a rank of this many modules."""
    for name, array in report.arrays.items():
        columns = COLUMNS.get(name)
        if columns is None:
            continue
        num_rows, *row = array.shape
        if tuple(row) != columns:
            wanted = f"{HISTOGRAM_BINS} columns" if columns else "one dimension"
            raise WireError("shape", f"{name} has shape {list(array.shape)}, expected {wanted}")
        if name in LAYER_ARRAYS:
            start, stride = report.slices.get(name, (0, 1))
            must_be_whole = name in WHOLE_ARRAYS or name not in report.slices
            is_part = stride and start + (num_rows - 1) * stride < num_layers
            if not is_part or (must_be_whole and num_rows != num_layers):
                where = f"{num_rows} rows from layer {start} by {stride}"
                raise WireError("layer_count", f"{name} has {where}, the job has {num_layers} layers")
        elif num_rows > num_modules:
            raise WireError("layer_count", f"{name} has {num_rows} rows, the Hello has {num_modules} modules")
