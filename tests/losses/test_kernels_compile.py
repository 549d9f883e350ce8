"""Every kernel compiles for a GPU, on machines without one. The interpreter accepts what Triton's compiler refuses."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)
pytest.importorskip("triton.backends.nvidia", reason="this Triton has no compiler for NVIDIA's GPUs")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from refocal.losses import internals  # noqa: E402
from refocal.losses.gpu import plan as planner  # noqa: E402
from refocal.losses.gpu.calls import ChunkCall, FocalCall, NormalizerCall, PosteriorCall, SigmoidCall  # noqa: E402
from refocal.losses.spec import LossSpec, SpecByClass  # noqa: E402

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning"),  # of Triton 3.9
]
HERE = torch.device("cpu")  # planned as for a GPU
GPUS = [GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32)]
TYPES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.int64: "*i64"}
SPEC = LossSpec(2.0, -100, reduction="mean")
BY_CLASS = SpecByClass(*SPEC._replace(gamma=(2.0,) * 1000, reduction="sum"))
FOCAL = {
    "flat rows": (128, 10, torch.float32, SPEC),
    "flat rows in bfloat16": (300, 21, torch.bfloat16, SPEC._replace(gamma=2.5)),
    "tiles": (300, 64, torch.float16, SPEC),
    "whole rows": (256, 1000, torch.float32, SPEC),
    "gammas by class": (256, 1000, torch.float32, BY_CLASS),
    "rows after each other": (256, 32_000, torch.bfloat16, SPEC),
    "long rows": (64, 65_536, torch.bfloat16, SPEC),
    "ragged rows": (64, 50_257, torch.bfloat16, SPEC._replace(detached=True)),
    "smoothed rows": (256, 1000, torch.float32, SPEC._replace(label_smoothing=0.1)),
    "smoothed short rows": (256, 30, torch.float32, SPEC._replace(label_smoothing=0.1)),
    "many rows": (70_000, 1000, torch.float32, SPEC),
    "one by one": (256, 1000, torch.float32, SPEC._replace(reduction="none")),
}


def compile_launch(launch, *types):
    """Compile what a launch would, given the types of its pointers."""
    names = internals.argument_names(launch._kernel)
    numbers = ["fp32" if isinstance(number, float) else "i32" for number in launch._numbers]
    constants = {(names.index(name),): launch._constants[name] for name in names[len(types) + len(numbers) :]}
    signature = dict(zip(names, [*types, *numbers, *["constexpr"] * len(constants)], strict=True))
    aligned = {(place,): [["tt.divisibility", 16]] for place in range(len(types))}
    for gpu in GPUS:
        source = ASTSource(launch._kernel, signature, constants, aligned)
        compiled = triton.compile(source, target=gpu, options={"num_warps": launch._warps})
        assert compiled.asm["cubin"]


def describe(rows, classes, dtype, spec, *, soft=False, span=(), weighted=False, incoming=0):
    shape = torch.Size((rows, classes, *span))
    logits = torch.empty(shape, dtype=dtype, device="meta")
    target = torch.empty(shape if soft else (rows, *span), dtype=dtype if soft else torch.int64, device="meta")
    weight = (torch.Size((classes,)), dtype) if weighted else (None, None)
    described = shape, logits.stride(), dtype, HERE, target.shape, target.stride(), target.dtype
    return FocalCall(spec, *described, *weight, False, differentiable=True, incoming=incoming)


def compile_focal(call):
    plan = planner.plan_focal_loss(call)
    types = [TYPES[call.dtype], TYPES[call.target_dtype], TYPES[call.dtype], "*fp32", "*i32", TYPES[plan.loss.dtype]]
    types += ["*fp32", "*fp32", TYPES[call.dtype], TYPES[plan.loss.dtype]]
    compile_launch(plan.compute, *types)
    if plan.small:
        compile_launch(plan.compute_and_add, *types)
    if call.spec.reduction != "none" and not call.incoming:
        compile_launch(plan.finish, "*fp32", TYPES[plan.loss.dtype], "*fp32")
        compile_launch(plan.scale, TYPES[call.dtype], TYPES[plan.loss.dtype], "*fp32")
    if plan.counted and not plan.small:
        compile_launch(plan.count, "*i64", TYPES[call.dtype], "*fp32")


@pytest.fixture(autouse=True)
def no_gpu_is_asked(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(planner, "multiprocessors", lambda _: 132)
    planner.plan_focal_loss.cache_clear()
    yield
    planner.plan_focal_loss.cache_clear()


@pytest.mark.parametrize("case", FOCAL)
def test_focal_loss(case):
    compile_focal(describe(*FOCAL[case]))


@pytest.mark.parametrize(
    "options",
    [{"soft": True}, {"weighted": True}, {"span": (16, 16)}, {"span": (16, 16), "soft": True}, {"incoming": 1}],
    ids=str,
)
def test_focal_loss_with_options(options):
    compile_focal(describe(96, 150, torch.float32, SPEC, **options))


def test_sigmoid_loss():
    for spec in (SPEC._replace(alpha=0.25), SPEC._replace(reduction="none")):
        call = SigmoidCall(spec, 5000, torch.float32, torch.float32, torch.float32, HERE, loss=True, gradient=True)
        plan = planner.plan_sigmoid_loss(call)
        compile_launch(plan.compute, *["*fp32"] * 7)


@pytest.mark.parametrize("classes", [10, 1000, 32_000])
def test_posterior_map(classes):
    plan = planner.plan_posterior_map(PosteriorCall(2.0, torch.Size((64, classes)), (classes, 1), torch.bfloat16, HERE))
    compile_launch(plan.compute, "*bf16", "*bf16")


@pytest.mark.parametrize("softcap", [0.0, 30.0])
def test_linear_loss(softcap):
    shape = torch.Size((64, 50_257))
    spec = SPEC._replace(reduction="none", softcap=softcap)
    settings = {"gamma_by_class": False, "gradient": True, "scale_by_row": True}
    chunk = planner.plan_chunk(ChunkCall(spec, shape, 50_264, torch.bfloat16, HERE, None, **settings))
    compile_launch(chunk, "*bf16", "*i64", "*fp32", "*fp32", "*fp32", "*bf16")
    normalizers = planner.plan_normalizers(NormalizerCall(2.0, softcap, shape, 50_264, torch.bfloat16, HERE))
    compile_launch(normalizers, "*bf16", "*fp32", "*i32", "*fp32", "*fp32")
