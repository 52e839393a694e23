"""Checkpoints that are damaged or of other dtypes; what there is to report after one."""

import jax.numpy as jnp
import networks
import numpy as np
import optax
import pytest
from networks import cross_entropy, data, net

from parscan_bp import pipeline
from parscan_bp.pipeline import checkpoint


def _pipeline(dtype=jnp.float32, optimiser=None):
    functions, params = net(3, dtype=dtype)
    return pipeline.Pipeline(
        functions,
        params,
        split=(1, 1, 1),
        schedule=pipeline.DSP((1, 1, 0), (4, 2, 0)),
        optimiser=networks.sgd(0.1, momentum=0.9) if optimiser is None else optimiser,
        loss=cross_entropy,
    )


def test_dtypes_have_to_be_the_same(tmp_path):
    path = tmp_path / "flight"
    made = _pipeline()
    made.step(data(1)[0])
    made.save(path)
    made.close()
    with pytest.raises(ValueError, match=r"weights of block 0 .*float32.*bfloat16.* wanted"):
        _pipeline(jnp.bfloat16).restore(path)
    low = _pipeline(optimiser=optax.sgd(0.1, momentum=0.9, accumulator_dtype=jnp.bfloat16))
    with pytest.raises(ValueError, match=r"optimiser_state of block 0 .*float32.*bfloat16.* wan"):
        low.restore(path)


def test_a_damaged_checkpoint_is_none(tmp_path):
    made, path = _pipeline(), tmp_path / "flight"
    made.step(data(1)[0])
    made.save(path)
    made.close()
    whole, fresh = path.read_bytes(), _pipeline()
    with pytest.raises(FileNotFoundError):
        fresh.restore(tmp_path / "none")
    rng = np.random.default_rng(0)
    directory = whole.rindex(b"PK\x01\x02")
    damaged = [b"", b"no", whole[: len(whole) // 2], whole[:-1], whole[:30]]
    for at in (directory + 8, directory + 10, directory + 42, *rng.integers(len(whole), size=40)):
        damaged.append(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
    np.save(tmp_path / "array.npy", np.ones(3))
    damaged.append((tmp_path / "array.npy").read_bytes())
    told = 0
    for content in damaged:
        path.write_bytes(content)
        # Some bytes of an archive mean nothing to whoever reads it.
        try:
            checkpoint.read(path)
        except ValueError as error:
            assert f"path: {path} is no checkpoint of a pipeline" in str(error)
            told += 1
    assert told > 8
    path.write_bytes(whole)
    fresh.restore(path)
    assert fresh.batches == 1
    fresh.close()


def test_there_is_no_report_before_a_batch_has_left(tmp_path):
    made, batches, path = _pipeline(), data(7), tmp_path / "flight"
    for batch in batches[:4]:
        made.step(batch)
        with pytest.raises(ValueError, match="no batch has left the pipeline since it was made or"):
            made.report()
    for batch in batches[4:]:
        made.step(batch)
    assert made.report().batches == 7
    made.save(path)
    again = _pipeline()
    again.restore(path)
    with pytest.raises(ValueError, match="no batch has left the pipeline since it was made or"):
        again.report()
    again.step(batches[0])
    assert again.report().batches == 8
