"""Contexts, and text in and out of them."""

import subprocess
import sys
import threading

import pytest

from fa4c.ir.context import new_context, parse_module, print_module
from fa4c.ir.mlir import ir

FUNCTION = "func.func @f(%x: f32) -> f32 {\n  return %x : f32\n}\n"


def test_contexts_made_in_several_threads():
    failures = []

    def work():
        try:
            for _ in range(5):
                assert "func.func @f" in print_module(parse_module(FUNCTION, "f.mlir", new_context()))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("text", [FUNCTION, "module {\n" + FUNCTION + "}", "// module\n" + FUNCTION + FUNCTION.replace("@f", "@g")])
def test_locations_name_the_file_and_survive_text(text):
    module = parse_module(text, "dir/name.mlir")
    printed = print_module(module)
    line = text[: text.index("  return")].count("\n") + 1
    assert f'"dir/name.mlir":{line}:3' in printed
    assert print_module(parse_module(printed, "other.mlir")) == printed
    assert "loc(" not in print_module(module, locations=False)


def test_errors_name_the_file():
    with pytest.raises(ir.MLIRError) as error:
        parse_module("func.func @f() {\n  return %x : f32\n}", "dir/bad.mlir")
    assert '"dir/bad.mlir":2:' in str(error.value.error_diagnostics[0].location)


def test_a_file_keeps_its_columns(tmp_path):
    path = tmp_path / "f.mlir"
    path.write_text(FUNCTION)
    module = parse_module(FUNCTION, str(path))
    assert f'"{path}":1:1' in str(module.body.operations[0].location)


def test_undeclared_operations_are_refused():
    with pytest.raises(ir.MLIRError, match="attn.nothing"):
        parse_module('"attn.nothing"() : () -> ()', "f.mlir")


def test_operand_lists_may_mix_types_and_print_no_segment_sizes():
    text = """func.func @f(%s: tensor<?x?xf32>, %l: tensor<?xf32>) -> tensor<?x?xf32> {
  %t = "attn.map"(%s, %l) ({
  ^bb0(%x: f32, %y: f32, %b: index, %h: index, %i: index, %j: index):
    %z = arith.addf %x, %y : f32
    "attn.yield"(%z) : (f32) -> ()
  }) : (tensor<?x?xf32>, tensor<?xf32>) -> tensor<?x?xf32>
  return %t : tensor<?x?xf32>
}"""
    module = parse_module(text, "f.mlir")
    assert module.operation.verify()
    assert "SegmentSizes" not in print_module(module)


def test_too_many_operands_are_a_diagnostic():
    operands, types = ", ".join(["%x"] * 49), ", ".join(["tensor<?xf32>"] * 49)
    arguments = ", ".join([f"%a{n}: f32" for n in range(49)] + ["%b: index", "%h: index", "%i: index"])
    text = f"""func.func @f(%x: tensor<?xf32>) {{
  %t = "attn.map"({operands}) ({{
  ^bb0({arguments}):
    "attn.yield"(%a0) : (f32) -> ()
  }}) : ({types}) -> tensor<?xf32>
  return
}}"""
    with pytest.raises(ir.MLIRError, match="has 49 operands"):
        parse_module(text, "f.mlir")


def test_the_dialect_needs_no_torch():
    program = "import sys; sys.path.insert(0, '.'); import fa4c.ir.context as c; c.new_context(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
