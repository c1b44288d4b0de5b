"""Edge cases of issue 5 by the reference backend; `test/lowering/test_backward_edges.py` runs them through compiled kernels."""

import pytest
from edge_cases import CASES, run


@pytest.mark.parametrize("case", CASES, ids=str)
def test_edge(case):
    results, rows = run(case, "reference")
    assert [row for row in rows if not row.ok] == []
    assert case.holds is None or case.holds(results)
