"""The kinds of computation that a spec may name."""

from refocal.reproduce.base import Kind
from refocal.reproduce.kinds import (
    arrows,
    binary_map,
    bounds,
    derivative,
    isolines,
    linear_model,
    map_difference,
    minimiser,
    nearest_temperature,
    one_dimension,
    phi,
    tabular,
)

KINDS: dict[str, Kind] = {
    "arrows": arrows.KIND,
    "binary-map": binary_map.KIND,
    "bounds": bounds.KIND,
    "derivative": derivative.KIND,
    "isolines": isolines.KIND,
    "linear-model": linear_model.KIND,
    "map-difference": map_difference.KIND,
    "minimiser": minimiser.KIND,
    "nearest-temperature": nearest_temperature.KIND,
    "one-dimension": one_dimension.KIND,
    "phi": phi.KIND,
    "tabular": tabular.KIND,
}
