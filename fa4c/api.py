"""What `import fa4c` offers in Python: `attention`, `compile` (and `load`, from the runtime).

`attention` keeps, for each thread, a table from all that shapes a call (shapes, strides, dtypes, device, options) to a bound launch,
a repeated call is one look-up, the output's allocation and the launch. All else happens in a combination's first call. Inputs that require
grad have a table of their own, whose entries go through autograd (`runtime/autograd.py`). The compiler is imported in `_compile_text`, and
only where the disk cache has no kernel.
"""

from __future__ import annotations

import os
import pathlib
import threading

import torch

from .problem import Problem
from .runtime import arguments, cache, cuda, execute, reference
from .runtime.artifact import Artifact
from .runtime.artifact import load as load_artifact
from .runtime.autograd import Training, transforms_active
from .runtime.errors import BackendError, InputError, InputTypeError, nearest
from .runtime.manifest import DIRECTIONS, TARGETS
from .runtime.torch_types import name_of
from .training import result_names, training

_MAX_CALLS = 1024
is_grad_enabled, is_compiling = torch.is_grad_enabled, torch.compiler.is_compiling
_environ = os.environ
# os.environ encodes a name and raises inside at each look-up of an unset variable, 1 us each; its table underneath does not
_table = getattr(os.environ, "_data", os.environ)
_BACKEND, _TARGET = (os.environ.encodekey(n) if _table is not os.environ else n for n in ("FA4C_BACKEND", "FA4C_TARGET"))


class _Calls(threading.local):
    def __init__(self):
        self.table: dict = {}
        self.training: dict = {}


_calls = _Calls()


def attention(
    q,
    k,
    v,
    *,
    causal=False,
    align="bottom_right",
    window=None,
    softcap=None,
    scale=None,
    score_mod=None,
    mask_mod=None,
    deterministic=False,
    return_lse=False,
    variant=None,
    captured=None,
    backend=None,
    target=None,
):
    """softmax(q @ k^T * scale) @ v, and what the options say.

    q: (b, sq, hq, d), k: (b, sk, hkv, d), v: (b, sk, hkv, dv) bf16 or fp16 tensors of one dtype and device, any strides; hq a multiple of
    hkv; d and dv multiples of 8, at most 256. Returns o: (b, sq, hq, dv), or (o, lse) with lse: (b, hq, sq) float32 (natural log).

    causal: key j is visible to query i if j <= i, where `align` counts queries from the last key ("bottom_right") or from the first
    ("top_left"). window=(left, right): inclusive distances, None = unlimited. softcap=c: c * tanh(s / c). scale: default 1 / sqrt(d).
    variant: an artifact (`fa4c.load`, `fa4c.compile`), a path to an attn `.mlir` file, or its text, instead of these options;
    captured={name: tensor}: its other inputs. backend, target (or FA4C_BACKEND, FA4C_TARGET): where it runs.

    Inputs that require grad get gradients, captured ones too, from o and from lse; one with direction "both" is needed where the variant is
    an artifact. deterministic (or torch.use_deterministic_algorithms(True)): the same gradients in every run, bit for bit; the forward is
    always so. Works under torch.compile.

    Raises `InputError` (a ValueError), `InputTypeError` (a TypeError), `BackendError` (a RuntimeError), `NotYetError`, each with what, why
    and how to fix.
    """
    if is_compiling():
        from . import torch_ops

        arguments.refuse_functions(score_mod, mask_mod)
        return torch_ops.attention(
            q, k, v, captured, return_lse, causal, align, window, softcap, scale, deterministic, variant, backend, target
        )
    try:
        tensors, more, trained = (q, k, v), None, q.requires_grad or k.requires_grad or v.requires_grad
        if captured is not None:
            tensors = (q, k, v, *captured.values())
            more = tuple([(n, x.shape, x.stride(), x.dtype, x.device) for n, x in captured.items()])
            trained = trained or any([x.requires_grad for x in tensors[3:]])
        trained = trained and is_grad_enabled()
        key = (q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride(), q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, more,
               causal, align, window, softcap, scale, return_lse, variant, backend, target, deterministic,
               _table.get(_BACKEND), _table.get(_TARGET))  # fmt: skip
        table = _calls.training if trained else _calls.table
        call = table.get(key)
    except (AttributeError, TypeError, RuntimeError):  # no strided tensor, or an unhashable option: `_problem` tells
        key = call = None
    if call is None or score_mod is not None or mask_mod is not None or (trained and transforms_active()):
        options = dict(causal=causal, align=align, window=window, softcap=softcap, scale=scale)
        arguments.refuse_functions(score_mod, mask_mod)
        problem, given = _problem(q, k, v, options, variant, captured, backend, target)
        if key is None:  # an unhashable option that is right after all
            tensors = (q, k, v, *(captured or {}).values())
            trained = is_grad_enabled() and any(t.requires_grad for t in tensors)
        call = training(problem, given, return_lse, deterministic).attached() if trained else _call(problem, given, return_lse)
        if key is not None and (variant is None or isinstance(variant, Artifact)):  # a file may change: it is read again
            _remember(table, key, call)
    return call(*tensors)


def training_of(q, k, v, *, captured, deterministic, variant, backend, target, **options) -> Training:
    """This thread's `Training` for these tensors and options, for the operators of `torch_ops.py`."""
    shapes = tuple([(x.shape, x.stride(), x.dtype, x.device) for x in (q, k, v, *(captured or {}).values())])
    variables = _table.get(_BACKEND), _table.get(_TARGET)
    key = (shapes, tuple(captured or ()), variant, backend, target, deterministic, *options.values(), *variables)
    found = _calls.training.get(key)
    if found is None:
        problem, given = _problem(q, k, v, options, variant, captured, backend, target)
        found = training(problem, given, False, deterministic)
        if variant is None or isinstance(variant, Artifact):
            _remember(_calls.training, key, found)
    return found


def _remember(table: dict, key, call) -> None:
    if len(table) >= _MAX_CALLS:  # a server with ever new shapes starts over then
        table.clear()
    table[key] = call


class _Call:
    """`call(q, k, v, *captured)` -> o or (o, lse), by one backend, for one combination of shapes and options.

    `order`: positions of the kernel's inputs among the arguments, None if they are the same; `swap`: the variant's layout is (b, h, s, d).
    """

    __slots__ = ("order", "run", "o", "lse", "swap")

    def __init__(self, run, order, wanted, o, lse, swap):
        self.run, self.order, self.swap = run, order, swap
        self.o, self.lse = wanted.index(o), None if lse is None else wanted.index(lse)

    def __call__(self, *tensors):
        if self.swap:
            tensors = [*(t.transpose(1, 2) for t in tensors[:3]), *tensors[3:]]
        if self.order is not None:
            tensors = [tensors[k] for k in self.order]
        results = self.run(tensors)
        o = results[self.o].transpose(1, 2) if self.swap else results[self.o]
        return o if self.lse is None else (o, results[self.lse])


def compile(variant, *, target=None, head_dim=None, dtype=None, direction="fwd", deterministic=False, of=None, wrt=None) -> Artifact:
    """An artifact for `variant`: a path to an attn `.mlir` file, its text, a semantics tree (dict) or an object with one (`.semantics`).

    head_dim: d or (d, dv); dtype: torch dtype or name; both default to what the variant says. direction: "fwd", "bwd" or "both" (what
    `attention` needs to train with an artifact); deterministic: a backward whose sums have a fixed order; of, wrt: names of the results and
    of the inputs that it is derived for (default: all floating ones, of the results all but LSE). `.save(path)` writes it. Uses the disk
    cache. Raises `InputError`, and the compiler's located diagnostics.
    """
    if isinstance(variant, Artifact):
        return variant
    if direction not in DIRECTIONS:
        raise InputError(f"direction is {direction!r}{nearest(str(direction), DIRECTIONS)}", why=f"it is one of {', '.join(DIRECTIONS)}")
    target = arguments.check_target(target or _environ.get("FA4C_TARGET") or "sm_90a")
    dtype = None if dtype is None else arguments.check_dtype(name_of(dtype))
    pair = None if head_dim is None else tuple(head_dim) if isinstance(head_dim, (tuple, list)) else (head_dim, head_dim)
    if pair is not None:
        arguments.check_head_dims(*pair)
    semantics = variant if isinstance(variant, dict) else getattr(variant, "semantics", None)
    chosen = dict(of=None if of is None else list(of), wrt=None if wrt is None else list(wrt), deterministic=bool(deterministic))
    derive = {} if direction == "fwd" else {name: value for name, value in chosen.items() if value}
    if semantics is not None:
        return _from_semantics(semantics, target, direction, dtype or semantics["args"][0]["dtype"], pair or _head_dims(semantics), derive)
    return _from_text(*_read_variant(variant), target, direction, dtype, pair, derive)


def _from_text(text, filename, target, direction, dtype, head_dim, derive) -> Artifact:
    key = cache.key_of_text(text, target=target, direction=direction, dtype=dtype, head_dim=head_dim, derive=derive)
    return cache.get_or_build(key, lambda: _compile_text(text, filename, target, direction, dtype, head_dim, **derive))


def _from_semantics(semantics, target, direction, dtype, head_dim, derive) -> Artifact:
    """`derive`: what a backward is derived for (of, wrt: names; deterministic), each only where it is not the default."""
    key = cache.key_of(semantics, target=target, direction=direction, dtype=dtype, head_dim=head_dim, derive=derive)

    def build():
        from .frontend.to_mlir import to_mlir

        name = f"<{semantics.get('name', 'attention')}>"
        return _compile_text(to_mlir(semantics), name, target, direction, dtype, head_dim, **derive)

    return cache.get_or_build(key, build)


def _compile_text(text, filename, target, direction, dtype, head_dim, deterministic=False, of=None, wrt=None):
    """The one door to the compiler: (manifest, members)."""
    try:
        from .lowering.compile import compile_text
    except ImportError as error:
        raise BackendError(
            f"the compiler cannot be imported: {error}",
            why="this variant is in no cache, so it must be compiled",
            fix="pip install torch-mlir nvidia-cutlass-dsl, or carry a filled FA4C_CACHE_DIR to this machine",
        ) from error
    try:
        return compile_text(
            text,
            filename,
            target=target,
            direction=direction,
            deterministic=deterministic,
            dtype=dtype,
            head_dim=head_dim,
            overrides=[("attn-derive-backward", name, ",".join(names)) for name, names in (("of", of), ("wrt", wrt)) if names],
        )
    except Exception as error:
        if not hasattr(error, "error_diagnostics"):  # a Diagnostic already reads as it should
            raise
        from .ir.diagnostics import from_mlir_error

        where, _, what = from_mlir_error(error).partition(": error: ")
        raise InputError(what, where=where) from None


def _problem(q, k, v, options, variant, captured, backend, target) -> tuple[Problem, dict]:
    """Check everything and find or compile the forward; the problem and {name: tensor} in the variant's layout."""
    arguments.check_tensors(q, k, v)
    backend = execute.choose_backend(backend, q.device)
    dtype, head_dim = name_of(q.dtype), (q.shape[3], v.shape[3])
    tensors = {"q": q, "k": k, "v": v, **(captured or {})}
    device = q.device
    if variant is None:
        if captured:
            raise InputError("captured tensors need a variant that reads them", fix="pass variant='file.mlir' too")
        semantics = _standard(**arguments.check_options(**options), dtype=dtype, d=head_dim[0], dv=head_dim[1])

        def compiled(direction, derive):
            return _from_semantics(semantics, _target(target, backend, device), direction, dtype, head_dim, derive)

        artifact = None if backend == "reference" else compiled("fwd", {})
    else:
        arguments.refuse_options(options)
        artifact, compiled = _variant(variant, lambda: _target(target, backend, device), dtype, head_dim)
        semantics = artifact.semantics
    problem = Problem(semantics, artifact, list(tensors), backend, device, compiled)
    given = dict(zip(tensors, problem.laid_out(list(tensors.values()))))
    if backend == "reference":
        _check_for_reference(problem, given)
    else:
        execute.check_inputs(artifact, given)
    return problem, given


def _check_for_reference(problem, given) -> None:
    known = [a["name"] for a in problem.semantics["args"]]
    if problem.artifact is not None:
        execute.check_inputs(problem.artifact, given)
    for name in known:
        if name not in given:
            raise InputError(
                f"the input {name!r} is missing", why=f"the variant reads {', '.join(known)}", fix=f"pass captured={{{name!r}: tensor}}"
            )
    reference.sizes_of(problem.semantics, given)


def _call(problem: Problem, given: dict, return_lse: bool) -> _Call:
    o, lse = result_names(problem.semantics, return_lse)
    run, order, wanted = problem.runner(given, (o,) if lse is None else (o, lse))
    return _Call(run, order, wanted, o, lse, problem.swap)


def _variant(variant, target, dtype, head_dim):
    """The artifact of a variant, and a function that compiles another direction of it."""
    if isinstance(variant, (str, os.PathLike)) and str(variant).endswith(".fa4c"):
        variant = load_artifact(variant)
    if isinstance(variant, Artifact):
        if variant.direction == "bwd":
            raise InputError("the variant is a backward alone", where=variant.path, fix="compile it with direction 'both'")
        return variant, lambda direction, derive: _backward_of(variant, derive)
    text, filename = _read_variant(variant)

    def compiled(direction, derive):
        return _from_text(text, filename, target(), direction, dtype, head_dim, derive)

    return compiled("fwd", {}), compiled


def _backward_of(artifact, derive) -> Artifact:
    if artifact.backward is None:
        raise InputError(
            "the variant is an artifact without a backward",
            where=artifact.path,
            why="an input requires grad, and an artifact is not compiled again",
            fix="compile it with direction 'both' (fa4c compile --direction both), or pass the variant's file",
        )
    if derive.get("deterministic") and artifact.backward.adds_in_any_order:
        raise InputError(
            "the artifact's backward adds in any order",
            where=artifact.path,
            why="deterministic=True, or torch's switch, asks for the same bits in every run, and an artifact is not compiled again",
            fix="compile it with deterministic=True (fa4c compile --direction both --deterministic), or pass the variant's file",
        )
    return artifact.backward


def _standard(**kw):
    from .frontend.variant import standard

    return standard(**kw)


def _read_variant(variant) -> tuple[str, str]:
    """(text, file name) of a path or of MLIR text."""
    if isinstance(variant, str) and ("\n" in variant or "func.func" in variant):
        return variant, "<string>"
    if not isinstance(variant, (str, os.PathLike)):
        raise InputTypeError(f"a variant is {type(variant).__name__}", why="it is an artifact, a path, MLIR text or a semantics tree")
    try:
        return pathlib.Path(variant).read_text(), str(variant)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the variant: {error}", where=variant, fix="name an attn .mlir file, or pass its text") from None


def _target(target, backend, device) -> str:
    target = target or _environ.get("FA4C_TARGET") or None
    if target is not None:
        target = arguments.check_target(target)
        if backend == "cuda":
            cuda.check_target(target, device.index)
        return target
    if backend != "cuda":
        return "sm_90a"
    found = cuda.target_of(device.index)
    if found is None:
        raise BackendError(
            f"no target of fa4c runs on {device} ({torch.cuda.get_device_name(device)})",
            why=f"the targets are {', '.join(TARGETS)}",
            fix="use backend='reference', or CPU tensors and the emulator",
        )
    return found


def _head_dims(semantics) -> tuple[int, int]:
    sizes = {dim: s for a in semantics["args"] for dim, s in zip(a["dims"], a["shape"]) if s is not None}
    return sizes["d"], sizes.get("dv", sizes["d"])
