// RUN: %fa4c opt %examples/causal.mlir --pass-pipeline "attn-derive-backward,attn-split-backward{groups=dq,dk+dv},attn-outline-kernels" --no-loc | filecheck %s
// RUN: %fa4c opt %examples/causal.mlir --pass-pipeline "attn-retype{head-dim=256},attn-derive-backward,attn-split-backward" --no-loc | filecheck %s --check-prefix=WIDE
// RUN: %fa4c opt %examples/causal.mlir --pass-pipeline "attn-retype{head-dim=64},attn-derive-backward,attn-split-backward" --no-loc | filecheck %s --check-prefix=NARROW
// RUN: %fa4c opt %examples/causal.mlir --pass-pipeline "attn-derive-backward,attn-split-backward{fuse=false}" --no-loc | filecheck %s --check-prefix=APART
// RUN: %fa4c opt %examples/causal.mlir --pass-pipeline "attn-derive-backward,attn-split-backward" --no-loc | filecheck %s --check-prefix=NARROW
// RUN: %fa4c opt %examples/softcap.mlir --pass-pipeline "attn-derive-backward,attn-split-backward" --no-loc | filecheck %s --check-prefix=APART
// RUN: %fa4c opt %examples/softcap.mlir --pass-pipeline "attn-retype{head-dim=64},attn-derive-backward,attn-split-backward" --no-loc | filecheck %s --check-prefix=NARROW
// RUN: %fa4c opt %examples/alibi.mlir --pass-pipeline "attn-retype{head-dim=64},attn-derive-backward,attn-split-backward" --no-loc | filecheck %s --check-prefix=SHARED
// RUN: %fa4c compile %examples/causal.mlir --target sm_100a --direction bwd --head-dim 192,128 --emit attn --no-loc | filecheck %s --check-prefix=ONE
// RUN: %fa4c compile %examples/causal.mlir --target sm_100a --direction bwd --head-dim 192,128 --emit attn --no-loc --set attn-split-backward.ctas=2 | filecheck %s --check-prefix=PAIR
// RUN: %fa4c compile %examples/causal.mlir --target sm_100a --direction bwd --head-dim 256 --emit attn --no-loc --set attn-split-backward.ctas=2 | filecheck %s --check-prefix=ONE
// RUN: %fa4c compile %examples/softcap.mlir --target sm_100a --direction bwd --emit attn --no-loc | filecheck %s --check-prefix=CAP
// RUN: sed 's/"attn.yield"(%%capped)/%%again = math.tanh %%capped : f32 "attn.yield"(%%again)/' %examples/softcap.mlir > %t.twice.mlir
// RUN: %fa4c compile %t.twice.mlir --target sm_100a --direction bwd --emit attn --no-loc | filecheck %s --check-prefix=TWICE
// RUN: sed -e 's/"attn.yield"(%%capped)/%%at = arith.index_cast %%j : index to i32 %%bias = arith.sitofp %%at : i32 to f32 %%sum = arith.addf %%capped, %%bias : f32 "attn.yield"(%%sum)/' -e '/"attn.mask"/,/^  })/d' -e 's/softmax"(%%u)/softmax"(%%t)/' %examples/softcap.mlir > %t.biased.mlir
// RUN: %fa4c compile %t.biased.mlir --target sm_100a --direction bwd --emit attn --no-loc | filecheck %s --check-prefix=TWICE
// RUN: not %fa4c opt %examples/causal.mlir --pass-pipeline "attn-derive-backward,attn-split-backward{groups=dq,dk+dw}" 2>&1 | filecheck %s --check-prefix=WRONG
// RUN: not %fa4c opt %examples/causal.mlir --pass-pipeline "attn-derive-backward,attn-split-backward{groups=dq,dk}" 2>&1 | filecheck %s --check-prefix=MISSING

// dQ by CTAs that own queries, dK and dV by CTAs that own keys: no sums in memory, so no postprocess; one preprocess for both.
// CHECK-LABEL:   func.func @causal_bwd_preprocess
// CHECK-LABEL:   func.func @causal_bwd_dq(
// CHECK-NOT:     attn.stationary
// CHECK-COUNT-3: "attn.gemm"
// CHECK-NOT:     "attn.gemm"
// CHECK-LABEL:   func.func @causal_bwd_dk_dv(
// CHECK-SAME:    attn.stationary = "n"
// CHECK-COUNT-4: "attn.gemm"
// CHECK-NOT:     "attn.gemm"
// CHECK-NOT:     _postprocess

// Two accumulators of 256 columns do not fit beside the scores; of 64 all fit, dQ added up in memory.
// WIDE:       attn.kernel = "dq", {{.*}}attn.kernel = "dk", {{.*}}attn.kernel = "dv"
// NARROW-NOT: attn.kernel
// A soft cap's tanh stays in registers beside the scores: at 128 columns that is too much. A slope's gradient goes along with dQ.
// APART:      attn.kernel = "dq", {{.*}}attn.kernel = "dk_dv", {{.*}}attn.kernel = "dk_dv"

// dV 128, dK 192 and two products of 128 are more than 512 columns; a pair's dQ is half as wide, and dP may lie over half of S. 256: neither.
// ONE:        func.func @causal_bwd_dq(
// PAIR:       func.func @causal_bwd_main(

// P of a soft cap is made on the way from t to P (1 - t^2). Of two caps, one on the other, two values wait for dP's factors: in registers
// that is too much, though no product is among them. Where P depends on the position, too, a select of 0 for queries past the end holds it.
// CAP:        func.func @softcap_bwd_main(
// TWICE:      func.func @softcap_bwd_dq(

// SHARED:     attn.kernel = "dq_dslopes", {{.*}}attn.kernel = "dk_dv", {{.*}}attn.kernel = "dk_dv", {{.*}}attn.kernel = "dq_dslopes"

// WRONG:      error: 'func.func' has no result 'dw' to put into a kernel
// MISSING:    error: 'dv' is in no group
