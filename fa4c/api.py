"""What `import fa4c` offers in Python: `attention`, `compile` (and `load`, from the runtime).

`attention` keeps, for each thread, a table from all that shapes a call (shapes, strides, dtypes, device, options) to a bound launch,
a repeated call is one look-up, the output's allocation and the launch. All else happens in a combination's first call. The compiler is
imported in `_compile_text`, and only where the disk cache has no kernel.
"""

from __future__ import annotations

import os
import pathlib
import threading

import torch

from .runtime import arguments, autograd, cache, cuda, execute, reference
from .runtime.artifact import Artifact
from .runtime.artifact import load as load_artifact
from .runtime.check import lse_values
from .runtime.errors import BackendError, InputError, InputTypeError, NotYetError
from .runtime.manifest import TARGETS
from .runtime.torch_types import name_of

_MAX_CALLS = 1024
_environ = os.environ
# os.environ encodes a name and raises inside at each look-up of an unset variable, 1 us each; its table underneath does not
_table = getattr(os.environ, "_data", os.environ)
_BACKEND, _TARGET = (os.environ.encodekey(n) if _table is not os.environ else n for n in ("FA4C_BACKEND", "FA4C_TARGET"))


class _Calls(threading.local):
    def __init__(self):
        self.table: dict = {}


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
    captured={name: tensor}: its other inputs. deterministic: the forward pass always is. backend, target (or FA4C_BACKEND,
    FA4C_TARGET): where it runs.

    Raises `InputError` (a ValueError), `InputTypeError` (a TypeError), `BackendError` (a RuntimeError), `NotYetError`, each with what, why
    and how to fix. Inputs that require gradients run forward; `.backward()` raises `NotYetError`.
    """
    try:
        more = None if captured is None else tuple([(n, x.shape, x.stride(), x.dtype, x.device) for n, x in captured.items()])
        key = (q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride(), q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, more,
               causal, align, window, softcap, scale, return_lse, variant, backend, target,
               _table.get(_BACKEND), _table.get(_TARGET))  # fmt: skip
        call = _calls.table.get(key)
    except (AttributeError, TypeError, RuntimeError):  # no strided tensor, or an unhashable option: `_first_call` tells
        key = call = None
    if call is None or score_mod is not None or mask_mod is not None:
        options = dict(causal=causal, align=align, window=window, softcap=softcap, scale=scale)
        call = _first_call(q, k, v, options, score_mod, mask_mod, return_lse, variant, captured, backend, target)
        if key is not None and (variant is None or isinstance(variant, Artifact)):  # a file may change: it is read again
            if len(_calls.table) >= _MAX_CALLS:
                _calls.table.clear()
            _calls.table[key] = call
    tensors = (q, k, v) if captured is None else (q, k, v, *captured.values())
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or any(t.requires_grad for t in tensors[3:])):
        return autograd.Forward.apply(call, *tensors)
    return call(*tensors)


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


def compile(variant, *, target=None, head_dim=None, dtype=None, direction="fwd") -> Artifact:
    """An artifact for `variant`: a path to an attn `.mlir` file, its text, a semantics tree (dict) or an object with one (`.semantics`).

    head_dim: d or (d, dv); dtype: torch dtype or name; both default to what the variant says. `.save(path)` writes it. Uses the disk cache.
    Raises `InputError`, and the compiler's located diagnostics.
    """
    if isinstance(variant, Artifact):
        return variant
    target = arguments.check_target(target or _environ.get("FA4C_TARGET") or "sm_90a")
    dtype = None if dtype is None else arguments.check_dtype(name_of(dtype))
    pair = None if head_dim is None else tuple(head_dim) if isinstance(head_dim, (tuple, list)) else (head_dim, head_dim)
    if pair is not None:
        arguments.check_head_dims(*pair)
    semantics = variant if isinstance(variant, dict) else getattr(variant, "semantics", None)
    if semantics is not None:
        return _from_semantics(semantics, target, direction, dtype or semantics["args"][0]["dtype"], pair or _head_dims(semantics))
    text, filename = _read_variant(variant)
    key = cache.key_of_text(text, target=target, direction=direction, dtype=dtype, head_dim=pair)
    return cache.get_or_build(key, lambda: _compile_text(text, filename, target, direction, dtype, pair))


def _from_semantics(semantics, target, direction, dtype, head_dim) -> Artifact:
    key = cache.key_of(semantics, target=target, direction=direction, dtype=dtype, head_dim=head_dim)

    def build():
        from .frontend.to_mlir import to_mlir

        return _compile_text(to_mlir(semantics), f"<{semantics.get('name', 'attention')}>", target, direction, dtype, head_dim)

    return cache.get_or_build(key, build)


def _compile_text(text, filename, target, direction, dtype, head_dim):
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
        return compile_text(text, filename, target=target, direction=direction, dtype=dtype, head_dim=head_dim)
    except Exception as error:
        if not hasattr(error, "error_diagnostics"):  # a Diagnostic already reads as it should
            raise
        from .ir.diagnostics import from_mlir_error

        where, _, what = from_mlir_error(error).partition(": error: ")
        raise InputError(what, where=where) from None


def _first_call(q, k, v, options, score_mod, mask_mod, return_lse, variant, captured, backend, target) -> _Call:
    """Check everything, find or compile the kernel, and bind it."""
    if score_mod is not None or mask_mod is not None:
        name = "score_mod" if score_mod is not None else "mask_mod"
        raise NotYetError(
            f"{name} is not supported yet",
            why="Python functions are not traced yet",
            fix="use causal, window, softcap, scale; or write the variant as an attn .mlir file and pass variant='file.mlir'",
        )
    arguments.check_tensors(q, k, v)
    backend = execute.choose_backend(backend, q.device)
    dtype, head_dim = name_of(q.dtype), (q.shape[3], v.shape[3])
    tensors = {"q": q, "k": k, "v": v, **(captured or {})}
    if variant is None:
        if captured:
            raise InputError("captured tensors need a variant that reads them", fix="pass variant='file.mlir' too")
        semantics = _standard(**arguments.check_options(**options), dtype=dtype, d=head_dim[0], dv=head_dim[1])
        artifact = (
            None if backend == "reference" else _from_semantics(semantics, _target(target, backend, q.device), "fwd", dtype, head_dim)
        )
    else:
        arguments.refuse_options(options)
        artifact = _variant_artifact(variant, lambda: _target(target, backend, q.device), dtype, head_dim)
        semantics = artifact.semantics
    swap = semantics.get("layout", "bshd") == "bhsd"
    if swap:
        tensors |= {name: tensors[name].transpose(1, 2) for name in ("q", "k", "v")}
    o, lse = _result_names(semantics, return_lse)
    want = (o,) if lse is None else (o, lse)
    if backend == "reference":
        return _reference_call(semantics, artifact, tensors, want, o, lse, swap)
    given = execute.check_inputs(artifact, tensors)
    wanted = execute.wanted_outputs(artifact, want, None)
    names = [t.name for t in artifact.program.inputs]
    if backend == "cuda":
        order = [list(tensors).index(n) for n in names]
        run = execute.runner(artifact, given, wanted, q.device)
        return _Call(run, None if order == list(range(len(order))) else order, wanted, o, lse, swap)

    def run(values):
        results = execute.execute(artifact, dict(zip(tensors, values)), backend=backend, want=want)
        return [results[name] for name in wanted]

    return _Call(run, None, wanted, o, lse, swap)


def _reference_call(semantics, artifact, tensors, want, o, lse, swap) -> _Call:
    names = list(tensors)
    known = [a["name"] for a in semantics["args"]]
    if artifact is not None:
        execute.check_inputs(artifact, tensors)
    for name in known:
        if name not in names:
            raise InputError(
                f"the input {name!r} is missing", why=f"the variant reads {', '.join(known)}", fix=f"pass captured={{{name!r}: tensor}}"
            )
    reference.sizes_of(semantics, tensors)

    def run(values):
        results = execute.run_reference(semantics, {n: t.detach() for n, t in zip(names, values)}, want)
        return [results[name] for name in want]

    return _Call(run, None, want, o, lse, swap)


def _variant_artifact(variant, target, dtype, head_dim) -> Artifact:
    if isinstance(variant, Artifact):
        return variant
    if isinstance(variant, (str, os.PathLike)) and str(variant).endswith(".fa4c"):
        return load_artifact(variant)
    return compile(variant, target=target(), head_dim=head_dim, dtype=dtype)


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


def _result_names(semantics, return_lse) -> tuple[str, str | None]:
    results = semantics["results"]
    found = [r["name"] for r in results if r["value"] in lse_values(semantics)]
    if return_lse and not found:
        raise InputError(
            "this variant returns no LSE",
            why=f"its results are {', '.join(r['name'] for r in results)}",
            fix="return the softmax's second result too",
        )
    o = next((r["name"] for r in results if r["name"] not in found), None)
    if o is None:
        raise InputError("this variant returns no output but LSE", fix="use fa4c.load(...) and fa4c.runtime.execute")
    return o, found[0] if return_lse else None


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
