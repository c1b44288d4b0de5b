"""What the hand-written kernels share: a prologue, pieces of PTX that recur, number formats, and a launch with the values it must give.

A line may carry a marker, `// @name`; a fault names the lines of its expected report by marker.
"""

import numpy as np

from fa4c.runtime.emulator import launch

HEADER = """.version 8.8
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 sm[];
.visible .entry k({params})
{{
.reg .pred %p<16>;
.reg .b16 %h<16>;
.reg .b32 %r<64>;
.reg .b32 %acc<128>;
.reg .b64 %rd<32>;
.reg .f32 %f<16>;
mov.u32 %r0, %tid.x;
mov.u32 %r1, sm;
shr.u32 %r2, %r0, 5;
and.b32 %r3, %r0, 31;
"""
WAIT = "{{ .reg .pred q; L: mbarrier.try_wait.parity.shared.b64 q, [{0}], {1}; @q bra D; bra L; D: }}"


def ptx(body, params=(), target="sm_90a"):
    """A kernel `k` around a body; params are declarations such as '.u64 out' or a name alone for a tensor map."""
    decls = ", ".join(f".param {p}" if p.startswith(".") else f".param .align 64 .b8 {p}[128]" for p in params)
    return HEADER.format(target=target, params=decls) + body.strip() + "\nret;\n}\n"


def bf16(x):
    """float32 to bf16 bits."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def f32(u):
    """bf16 bits to float32."""
    return (u.astype(np.uint32) << 16).view(np.float32)


def line_of(text, marker):
    """The line that carries `// @marker`."""
    hits = [i + 1 for i, s in enumerate(text.split("\n")) if s.rstrip().endswith(f"// @{marker}")]
    assert len(hits) == 1, (marker, hits)
    return hits[0]


class Case:
    """One kernel with its launch and the values it must give."""

    def __init__(self, name, text, grid, block, smem, make, cluster=(1, 1, 1)):
        self.name, self.text, self.grid, self.block, self.smem, self.make, self.cluster = name, text, grid, block, smem, make, cluster

    def run(self, text=None, **options):
        """(report, largest error); `make` gives fresh parameters and a function that computes the error."""
        params, error = self.make(options.pop("tweak", None))
        report = launch(
            text or self.text, "k", self.grid, self.block, self.cluster, options.pop("smem", self.smem), params, max_steps=20000, **options
        )
        return report, error()


def rng():
    return np.random.default_rng(7)


def wait(address, parity):
    """Wait until the phase of that parity of an mbarrier is over."""
    return WAIT.format(address, parity)


def barriers(*counts, fence=False, then=""):
    """Thread 0 initialises mbarriers at byte 0, 8, .. of shared memory, and does `then`; others skip it (%p0: not thread 0)."""
    lines = ["setp.ne.u32 %p0, %r0, 0;", "@%p0 bra INITED;"]
    for k, count in enumerate(counts):
        count, _, marker = str(count).partition(" ")
        lines.append(f"mbarrier.init.shared.b64 [%r1{f'+{8 * k}' if k else ''}], {count}; {marker}".rstrip())
    if fence:
        lines.append(f"fence.mbarrier_init.release.cluster; {'' if fence is True else fence}".rstrip())
    return "\n".join([*lines, *([then] if then else []), "INITED:"])


def map_address(register, name):
    """The generic address of a tensor map parameter."""
    return f"mov.b64 {register}, {name};\ncvta.param.u64 {register}, {register};"


def tma_load(to, tensor_map, x, y, barrier):
    """A two-dimensional tile into shared memory."""
    return ("cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
            f"[{to}], [{tensor_map}, {{{x}, {y}}}], [{barrier}];")  # fmt: skip


def output(value, index="%r3", base="%rd0"):
    """Store 32 bits at element `index` of a buffer (uses %rd30 and %rd31)."""
    return f"mul.wide.u32 %rd30, {index}, 4;\nadd.u64 %rd31, {base}, %rd30;\nst.global.u32 [%rd31], {value};"
