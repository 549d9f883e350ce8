"""`refocal export`: turn a saved calibrator into an ONNX graph."""

from __future__ import annotations

from argparse import Namespace

from refocal.cli.options import Commands, add_command, add_force


def add_parser(commands: Commands) -> None:
    """Add the command."""
    examples = "refocal export cal.json --onnx head.onnx"
    command = add_command(commands, "export", "turn a saved calibrator into an ONNX graph", examples, run)
    command.add_argument("calibrator", metavar="CALIBRATOR", help="a file written by calibrate --save")
    command.add_argument("--onnx", metavar="FILE", required=True, help="write the graph: .onnx")
    add_force(command)


def run(options: Namespace) -> None:
    """Write the graph."""
    from refocal._extras import how_to_install
    from refocal.calibrators import load
    from refocal.cli.output import check_outputs, show

    check_outputs(options, [options.calibrator])
    calibrator = load(options.calibrator)
    try:
        calibrator.to_onnx(options.onnx, overwrite=options.force)
    except ModuleNotFoundError as error:
        msg = f"the export needs onnx: {how_to_install('onnx')}"
        raise ImportError(msg) from error
    show(options, f"from {calibrator.input_} to probabilities: {options.onnx}", {"onnx": options.onnx})
