// No 16-bit tensor, no dimension named d or dv.
func.func @row_sums(%x: tensor<?x16xf32> {attn.name = "x", attn.axes = ["b"], attn.dims = ["m", "w"]})
    -> (tensor<?xf32> {attn.name = "y", attn.axes = ["b"], attn.dims = ["m"]}) {
  %y = "attn.reduce"(%x) {kind = "sum"} : (tensor<?x16xf32>) -> tensor<?xf32>
  return %y : tensor<?xf32>
}
