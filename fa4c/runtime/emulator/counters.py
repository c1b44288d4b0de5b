"""Counts of what a launch executed: by instruction class, by cause of shared-memory traffic, by unit."""

from collections import defaultdict

CLASSES = {
    "fp32": {"add", "sub", "mul", "fma", "mad", "max", "min", "neg", "abs"},
    "special": {"ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh"},
    "control": {"bra", "ret", "exit"},
    "memory": {"ld", "st"},
    "atomic": {"atom", "red"},
    "mma": {"wgmma", "mma", "tcgen05"},
    "sync": {"bar", "barrier", "mbarrier", "fence", "membar", "elect", "shfl", "vote", "redux", "match"},
    "async_copy": {"cp"},
    "convert": {"cvt"},
    "move": {"mov"},
}
_OF = {op: cls for cls, ops in CLASSES.items() for op in ops}

# Dense 16-bit rate of one SM's tensor cores: H100 SXM 989 TFLOP/s at 1.83 GHz over 132 SMs; B200 2.25 PFLOP/s at 1.85 GHz over 148.
HOPPER_FLOP_PER_CLOCK = 4096
BLACKWELL_FLOP_PER_CLOCK = 8192


def class_of(instr):
    """The counter class of one instruction."""
    base = instr.parts[0]
    cls = _OF.get(base, "integer")
    if cls == "fp32" and not any(p.startswith(("f32", "f16", "bf16", "f64")) for p in instr.parts[1:]):
        return "integer"
    return cls


_FMA_UNITS = {"add", "sub", "mul", "fma", "mad"}


def counters_of(instr):
    """The counters that one instruction adds one to, a name for each time: that of its class; of the special functions exponentials also by
    themselves; of fp32 what the FMA units do, of which a packed instruction is two."""
    found = ["instructions." + class_of(instr)]
    if instr.parts[0] == "ex2":
        found.append("instructions.ex2")
    elif found[0] == "instructions.fp32" and instr.parts[0] in _FMA_UNITS:
        found += ["fma_operations"] * (2 if "f32x2" in instr.parts else 1)
    return found


class Counters:
    """One CTA's counters."""

    def __init__(self):
        self.values = defaultdict(int)

    def add(self, key, n=1):
        self.values[key] += n

    def load(self, space, mem, nbytes, F, m):
        n = nbytes * (int(m.sum()) if m is not None else F.width)
        if mem is F.cta.cluster.smem.mem:
            self.values["smem_bytes.load"] += n
        elif space != "local" and space != "param":
            self.values["global_bytes.load"] += n

    def store(self, space, mem, nbytes, F, m):
        n = nbytes * (int(m.sum()) if m is not None else F.width)
        if mem is F.cta.cluster.smem.mem:
            self.values["smem_bytes.store"] += n
        elif space != "local":
            self.values["global_bytes.store"] += n
