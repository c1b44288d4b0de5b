// RUN: %fa4c compile %examples/causal.mlir --target sm_100a --emit tile --no-loc | filecheck %s
// RUN: %fa4c compile %examples/causal.mlir --target sm_100a --emit tile --no-loc --head-dim 64 | filecheck %s --check-prefix=ROOM

// Head dim 128, two row blocks: 256 columns each. P lies over the scores: it is written once they are read (order 4, the same iteration),
// and the next scores are formed once the MMA that reads P has been issued (order 1, one iteration before).
// CHECK:     "tile.splat"() {value = 0.000000e+00 : f32} : () -> tensor<256x128xf32, #tile.tmem<0 : i64>>
// CHECK:     "tile.mma"{{.*}}after = array<i64: 1, 1>, order = 3 : i64, stage = 0 : i64{{.*}} -> tensor<256x128xf32, #tile.tmem<128 : i64>>
// CHECK:     order = 4 : i64, stage = 0 : i64{{.*}}tensor<256x128xf32, #tile.tmem<128 : i64>>{{.*}} -> tensor<256x128xf32, #tile.reg>
// CHECK:     after = array<i64: 4, 0>, {{.*}} -> tensor<256x128xbf16, #tile.tmem<128 : i64>>
// CHECK:     "tile.mma"{{.*}}order = 1 : i64, stage = 1 : i64{{.*}} -> tensor<256x128xf32, #tile.tmem<0 : i64>>

// Head dim 64: everything has columns of its own, and nothing waits.
// ROOM:      #tile.tmem<0 : i64>
// ROOM-NOT:  after
// ROOM:      "tile.mma"{{.*}} -> tensor<256x128xf32, #tile.tmem<64 : i64>>
// ROOM-NOT:  after
// ROOM:      -> tensor<256x128xbf16, #tile.tmem<192 : i64>>
