// RUN: %fa4c opt %examples/warp/gemm_bias_tanh.mlir --pass-pipeline "warp-check"
// RUN: sed 's/"warp.release".*//' %examples/warp/gemm_bias_tanh.mlir > %t.1.mlir
// RUN: not %fa4c opt %t.1.mlir --pass-pipeline "warp-check" 2>&1 | filecheck %s --check-prefix RELEASE
// RUN: sed 's/"warp.wgmma_fence".*//' %examples/warp/gemm_bias_tanh.mlir > %t.2.mlir
// RUN: not %fa4c opt %t.2.mlir --pass-pipeline "warp-check" 2>&1 | filecheck %s --check-prefix FENCE
// RUN: sed 's/registers = 24}/registers = 48}/' %examples/warp/gemm_bias_tanh.mlir > %t.3.mlir
// RUN: not %fa4c opt %t.3.mlir --pass-pipeline "warp-check" 2>&1 | filecheck %s --check-prefix BUDGET

// Nothing is wrong with the example itself. Where something is left out it says where, why, and what to do. (All faults: test_warp_check.py.)
// RELEASE: mlir:65:7: error: 'warp.advance' leaves a slot that it has not released
// RELEASE: note: why: the producer will wait for it forever
// RELEASE: note: fix: put warp.release before it
// FENCE: error: 'warp.wgmma' may run before earlier accesses to its registers
// FENCE: note: fix: put warp.wgmma_fence before it
// BUDGET: error: 'warp.kernel' gives its roles 67584 registers, but starts with
