"""What maps load of captured tensors where a thread has a whole row: by column alone, a lane loads for its columns and passes on."""

import importlib.util
import pathlib
import re
import sys

import compiled

from fa4c.frontend.to_mlir import to_mlir
from fa4c.ir.context import new_context, parse_module
from fa4c.ir.tile_base import nested_in
from fa4c.lowering.compile import compile_text
from fa4c.passes.register_pressure import OTHER_REGISTERS, columns_at_a_time
from fa4c.runtime import check, execute
from fa4c.runtime.inputs import make_inputs

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "runtime"))
from runtime_samples import attention_tree  # noqa: E402

TARGET = "sm_100a"
PATH = pathlib.Path(__file__).resolve().parents[2] / "bench" / "local_memory.py"
spec = importlib.util.spec_from_file_location("local_memory", PATH)
local_memory = importlib.util.module_from_spec(spec)
spec.loader.exec_module(local_memory)


def test_a_row_takes_one_load_for_32_columns():
    """document.mlir's mask: one number for each of a block's 80 keys, and one of the query."""
    ptx = compiled.ptx("document.mlir", target=TARGET, head_dim=(64, 64))
    assert len(re.findall(r"ld\.global", ptx)) <= 8
    assert len(re.findall(r"shfl\.sync\.idx", ptx)) >= 80
    kernel = compiled.loaded("document.mlir", target=TARGET, head_dim=(64, 64))
    inputs = make_inputs(kernel.manifest["semantics"], dict(b=2, hq=1, hkv=1, m=130, n=170), 0, "cpu")
    assert all(row.ok for row in check.check(kernel.manifest["semantics"], inputs, execute.execute(kernel, inputs, backend="emulator")))


BIAS = to_mlir(attention_tree(
    score=[["x", 0], ["index", "i"], ["index", "j"], ["load", "bias", 1, 2], ["add", 0, 3]], align="top_left",
    captures=[dict(name="bias", axes=["b", "hq"], dims=["m", "n"], dtype="f32", shape=[None, None])]))  # fmt: skip


def test_what_depends_on_the_row_too_is_loaded_by_each_thread():
    source = compile_text(BIAS, "bias.mlir", target=TARGET, emit="cute")
    assert "read_if_inside(Float32, ptr_bias" in source and "shuffle_sync" not in source
    assert re.findall(r"# (\d+) columns of tS", source) == ["8"]


def test_columns_at_a_time_leave_room_for_what_loads_need():
    """Beside a row of 128 results, of each column the score, and of its load number, address and offset: 6 registers."""
    with new_context() as context:
        module = parse_module(compile_text(BIAS, "bias.mlir", target=TARGET, emit="tile"), "bias.mlir", context)
        loading = [op for op in nested_in(module.body) if op.operation.name == "tile.map" and "tile.load_element" in str(op)]
        for registers, columns in ((184, 8), (255, 8), (128 + OTHER_REGISTERS + 16 * 6, 16), (128 + OTHER_REGISTERS + 32 * 6, 32)):
            assert {columns_at_a_time(op, registers) for op in loading} == {columns}


SASS = """
\t.section\t.text.kernel,"ax",@progbits
        /*0000*/                   STL [R1], R2                            (*"SpillRefill"*) ;
        /*0010*/                   BRA `(.L_x_9) ;
.L_x_1:
        /*0020*/                   LDL.LU R3, [R1]                         (*"SpillRefill"*) ;
        /*0030*/              @!P0 BRA `(.L_x_1) ;
        /*0040*/                   BRA `(.L_x_3) ;
.L_x_9:
        /*0050*/                   LDL R4, [R1] ;
        /*0060*/              @!P1 BRA `(.L_x_1) ;
.L_x_3:
        /*0070*/                   EXIT ;
"""


def test_accesses_in_loops_are_told_from_others():
    """A jump back alone is no loop: 0x40 to 0x10 is not dominated."""
    found = local_memory.local_accesses(SASS)["kernel"]
    assert found["inside"] == ["0020 LDL.LU R3, [R1]"]
    assert found["outside"] == ["0000 STL [R1], R2", "0050 LDL R4, [R1]"]
