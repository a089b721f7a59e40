# SPDX-License-Identifier: Apache-2.0
"""Datasets of sequences: what is read, in which order, and what is refused."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from pyro_vgpds import SequenceDataset, Sequences
from pyro_vgpds.data import MappedSequences

LENGTHS = (4, 2, 5)


class Counting(Dataset):
    """Counts how often each sequence is read."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.items = [(np.arange(n) * 0.1, rng.standard_normal((n, 3))) for n in LENGTHS]
        self.read = [0] * len(LENGTHS)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        self.read[i] += 1
        return self.items[i]


def test_sequences_are_read_when_they_are_needed():
    source = Counting()
    many = SequenceDataset(source, lengths=LENGTHS)
    assert source.read == [0, 0, 0]
    batch = many.batch([2, 0])
    assert source.read == [1, 0, 1]
    assert batch.sequences.lengths == (5, 4)
    assert batch.rows.tolist() == [6, 7, 8, 9, 10, 0, 1, 2, 3]
    assert batch.scale == 1.5
    assert torch.equal(batch.sequences.read()[5:], torch.from_numpy(source.items[0][1]))
    assert SequenceDataset(source).lengths == LENGTHS  # without lengths, each is read once


def test_batches_of_sequences_equal_those_of_a_dataset():
    source = Counting()
    exposure = [np.full((n, 3), i + 1.0) for i, n in enumerate(LENGTHS)]
    data = Sequences([t for t, _ in source.items], [y for _, y in source.items], names=list("abc"), exposure=exposure)
    some, other = SequenceDataset(data).sequences([2, 1]), SequenceDataset(source).sequences([2, 1])
    assert torch.equal(some.read(), other.read())
    assert torch.equal(some.times.t, other.times.t)
    assert some.names == ["c", "b"]
    assert some.exposure[:, 0].tolist() == [3.0] * 5 + [2.0] * 2
    assert torch.equal(some.output_means, other.output_means)
    assert SequenceDataset(data).sequences() is data


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("gap", [False, True])
def test_groups_of_a_batch_are_those_of_its_own_sequences(dtype, gap):
    """Data without gaps are centred and scaled once for all batches."""
    source = Counting()
    if gap:
        source.items[2][1][1, 0] = np.nan
    t, y = [t for t, _ in source.items], [y for _, y in source.items]
    some = SequenceDataset(Sequences(t, y, dtype=dtype)).sequences([2, 0])
    other = Sequences([t[2], t[0]], [y[2], y[0]], dtype=dtype)
    mean, scale = torch.tensor([0.1, -0.2, 0.3], dtype=dtype), torch.tensor([1.0, 0.5, 2.0], dtype=dtype)
    for _ in range(2):  # the second time from memory
        found, wanted = some.groups(mean, scale, columns=True), other.groups(mean, scale, columns=True)
        for name in ("columns", "rows", "square", "factor", "of_column", "log_scale", "order", "squares", "counts"):
            assert torch.allclose(getattr(found, name), getattr(wanted, name), rtol=1e-6, atol=0.0), name
        assert (found.mask is None) is (not gap)
        assert found.widths == wanted.widths
        mean = mean + 1.0
    for name in ("output_means", "output_variances", "output_counts"):
        assert torch.equal(getattr(some, name), getattr(other, name))
    assert torch.equal(some.mask(), other.mask())
    assert torch.equal(some.y.nan_to_num(), other.y.nan_to_num())
    assert (some.num_observed, some.num_missing) == (other.num_observed, other.num_missing)
    longer, wanted = some.joined(other), other.joined(other)
    assert torch.allclose(longer.groups(mean, scale, True).factor, wanted.groups(mean, scale, True).factor)
    inner = SequenceDataset(some).sequences([1])
    assert torch.equal(inner.output_means, SequenceDataset(other).sequences([1]).output_means)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        some.nothing  # noqa: B018
    assert some.groups(mean, scale).rows.tolist() == other.groups(mean, scale).rows.tolist()


def test_batches_have_almost_the_same_size_and_each_sequence_once():
    many = SequenceDataset([([0.0], [[float(i)]]) for i in range(10)])
    order = torch.randperm(10)
    batches = list(many.batches(4, order))
    assert [len(batch.indices) for batch in batches] == [4, 3, 3]
    assert torch.cat([batch.indices for batch in batches]).tolist() == order.tolist()
    assert sum(1.0 / batch.scale for batch in batches) == pytest.approx(1.0)


@pytest.mark.parametrize("times", ["file", "step"])
def test_mapped_files_equal_memory(tmp_path, times):
    source = Counting()
    np.save(tmp_path / "y.npy", np.concatenate([y for _, y in source.items]))
    np.save(tmp_path / "t.npy", np.concatenate([t for t, _ in source.items]))
    mapped = MappedSequences(tmp_path / "y.npy", LENGTHS, tmp_path / "t.npy" if times == "file" else 0.1)
    a, b = SequenceDataset(mapped), SequenceDataset(source)
    assert a.lengths == b.lengths
    assert torch.equal(a.sequences([1, 2]).read(), b.sequences([1, 2]).read())
    torch.testing.assert_close(a.sequences().times.t, b.sequences().times.t)


class Endless(IterableDataset):
    def __iter__(self):
        yield from ()


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        (Endless(), {}, TypeError, "IterableDataset has no items"),
        (3, {}, TypeError, "source must be Sequences or a map-style dataset"),
        ([], {}, ValueError, "source is empty"),
        (Sequences([0.0]), {}, ValueError, "source has times but no outputs"),
        (Sequences([0.0], [[1.0]]), {"lengths": [1]}, ValueError, "are those of source"),
        ([([0.0], [[1.0]])], {"lengths": [1, 2]}, ValueError, "lengths of source must be 1 positive numbers"),
        ([([0.0], [[1.0]])], {"lengths": [[1], [2, 3]]}, TypeError, "lengths must be whole numbers of frames"),
        ({"a": ([0.0], [[1.0]])}, {}, TypeError, r"source must have items 0 to 0, .* but item 0 raises KeyError"),
        ([[0.0, 1.0, 2.0]], {}, TypeError, r"items of source must be pairs \(t, y\), but item 0 is a list"),
    ],
)
def test_bad_sources(source, options, error, message):
    with pytest.raises(error, match=message):
        SequenceDataset(source, **options)


def test_bad_requests():
    many = SequenceDataset(Counting(), lengths=(4, 3, 5))
    for indices, fault in (([3], "3 is not one"), ([0, 0], "one repeats"), ([], "there are 0")):
        with pytest.raises(ValueError, match=f"indices must be different sequences from 0 to 2, but {fault}"):
            many.batch(indices)
    with pytest.raises(TypeError, match="indices must be a list of sequences, but got None"):
        many.batch(None)
    with pytest.raises(ValueError, match="sequence 1 has 2 frames, but its length is 3"):
        many.batch([1])
    with pytest.raises(ValueError, match="batch_size must be a whole number of at least 1, but got 0"):
        list(many.batches(0))
    dated = SequenceDataset([(np.array(["2020-01-01", "2020-01-02"], "datetime64[s]"), [[1.0], [2.0]])])
    with pytest.raises(TypeError, match="times of a dataset must be numbers"):
        dated.batch([0])


def test_bad_files(tmp_path):
    np.save(tmp_path / "y.npy", np.zeros((5, 2)))
    np.save(tmp_path / "t.npy", np.zeros(4))
    with pytest.raises(ValueError, match=r"y must be a \.npy file"):
        MappedSequences(tmp_path / "y.csv", [5], 0.1)
    with pytest.raises(ValueError, match=r"y is \(5, 2\) and the sum of lengths is 4"):
        MappedSequences(tmp_path / "y.npy", [4], 0.1)
    with pytest.raises(ValueError, match=r"t must be \(5,\), one time for each frame"):
        MappedSequences(tmp_path / "y.npy", [5], tmp_path / "t.npy")
    with pytest.raises(ValueError, match="t must be a positive time between frames"):
        MappedSequences(tmp_path / "y.npy", [5], 0.0)
