# SPDX-License-Identifier: Apache-2.0
import warnings

import pytest
import torch

from pyro_vgpds.linalg import NumericalError, add_diagonal, broadcast_shapes, cholesky, default_jitter, positive_part


def test_the_rule():
    assert default_jitter(torch.float64) == pytest.approx(1.49e-8, rel=1e-2)
    assert default_jitter(torch.float32) == pytest.approx(3.45e-4, rel=1e-2)
    k = torch.diag(torch.tensor([1e4, 3e4]))
    factor = cholesky(k, "K", None)
    torch.testing.assert_close(factor @ factor.mT, add_diagonal(k, 2e4 * default_jitter(k.dtype)), rtol=1e-15, atol=0)
    factor = cholesky(k, "K", 0.5)
    torch.testing.assert_close(factor @ factor.mT, k + 0.5 * torch.eye(2), rtol=1e-15, atol=0)


def test_retries_with_more_jitter_and_warns_once():
    k = torch.tensor([[1.0, 1.0 + 1e-7], [1.0 + 1e-7, 1.0]])
    with pytest.warns(
        RuntimeWarning, match=r"the matrix K \(2 x 2\) was not positive definite: jitter raised to 1\.5e-07"
    ):
        factor = cholesky(k, "the matrix K")
    torch.testing.assert_close(factor @ factor.mT, k, rtol=1e-6, atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cholesky(k, "the matrix K")


def test_says_which_matrix_and_what_to_try():
    with pytest.raises(NumericalError, match=r"K_MM \(3 x 3\) is not positive definite.*larger `jitter`.*float64"):
        cholesky(-torch.eye(3), "K_MM")
    with pytest.raises(NumericalError, match=r"K_MM \(2 x 2\) has entries that are not finite.*learning rate"):
        cholesky(torch.tensor([[1.0, float("nan")], [float("nan"), 1.0]]), "K_MM")


def test_a_batch_with_one_bad_member():
    good, bad = torch.eye(2), torch.ones(2, 2)
    with pytest.warns(RuntimeWarning, match="jitter raised"):
        factor = cholesky(torch.stack([good, bad - 1e-12 * torch.eye(2)]), "batch")
    torch.testing.assert_close(factor @ factor.mT, torch.stack([good, bad]), rtol=1e-6, atol=1e-6)


def test_only_negative_eigenvalues_are_removed():
    root = torch.randn(3, 5, 2).double()
    singular = root @ root.mT
    assert positive_part(singular) is singular
    unit = torch.linalg.qr(torch.randn(5, 5).double()).Q
    values = torch.tensor([-0.1, 0.0, 0.2, 1.0, 3.0]).double()
    bad = (unit * values) @ unit.mT
    found = positive_part(torch.stack([bad, singular[0]]))
    torch.testing.assert_close(found[0], (unit * values.clamp_min(0.0)) @ unit.mT)
    torch.testing.assert_close(found[1], singular[0])
    assert positive_part(torch.full((2, 2), torch.nan)).isnan().all()


@pytest.mark.parametrize(
    "shapes",
    [[()], [(), ()], [(3,), ()], [(1,), (4,)], [(2, 1), (1, 5)], [(5,), (2, 1), ()], [(0,), (1,)], [(2, 3)] * 2],
)
def test_broadcast_shapes(shapes):
    shapes = [torch.Size(shape) for shape in shapes]
    found = broadcast_shapes(*shapes)
    assert found == torch.broadcast_shapes(*shapes)
    assert isinstance(found, torch.Size)


@pytest.mark.parametrize("shapes", [[(2,), (3,)], [(2, 1), (3, 1)], [(0,), (2,)]])
def test_broadcast_shapes_that_do_not_fit(shapes):
    with pytest.raises(RuntimeError, match="ismatch"):
        broadcast_shapes(*map(torch.Size, shapes))
