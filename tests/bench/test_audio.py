"""Audio: layouts, features, and the training on them."""

import json

import numpy as np
import pytest
import soundfile

from bench import __main__ as command
from bench.paper.recurrent import audio
from bench.shared import figures


def _write(path, samples, rate=8000, channels=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(len(path.name) + samples)
    soundfile.write(path, 0.1 * rng.standard_normal((samples, channels)), rate)


@pytest.mark.parametrize(("name", "size"), [("S", (259, 38)), ("M", (517, 24)), ("L", (1034, 12))])
def test_features_have_the_sizes_of_table_3(name, size):
    wave = np.random.default_rng(0).standard_normal((2, 3 * 44100)).astype(np.float32)
    frames = audio.SETS[name].frames(wave, 44100)
    assert frames.shape == size and frames.dtype == np.float32
    np.testing.assert_allclose(frames.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(frames.std(0), 1, atol=1e-4)


def test_a_silent_clip_has_finite_features():
    assert np.isfinite(audio.SETS["S"].frames(np.zeros((1, 8000), np.float32), 8000)).all()


def test_spoken_digits_have_their_official_split_and_end_with_the_sound(tmp_path):
    for digit, index, samples in ((3, 0, 4000), (3, 7, 9000), (4, 4, 100), (4, 5, 8000), (4, 6, 9)):
        _write(tmp_path / f"{digit}_ann_{index}.wav", samples)
    clips = audio.read(tmp_path)
    assert (clips.rate, len(clips.classes)) == (8000, 10)
    assert sorted((c.label, c.test) for c in clips.clips) == [
        (3, False), (3, True), (4, False), (4, False), (4, True)
    ]  # fmt: skip
    assert {c.wave.shape for c in clips.clips} == {(1, 8000)}
    short = next(c.wave[0] for c in clips.clips if c.label == 4 and c.test)
    assert not short[:-100].any() and short[-100:].any()
    train, test = clips.features(audio.SETS["S"])
    assert len(train.labels) == 3 and len(test.labels) == 2
    batch = train.batch(np.array([0, 2]))
    assert batch.inputs.shape == (train.frames.shape[1], 2, 19) and batch.labels.shape == (2,)
    assert len(audio.read(tmp_path, per_class=1).clips) == 4  # of the training split


def test_instruments_are_the_folders(tmp_path):
    for name in ("cel", "vio"):
        for k in range(6):
            _write(tmp_path / name / f"[{name}]{k}.wav", 4410, 44100, channels=2)
    clips = audio.read(tmp_path)
    assert clips.classes == ("cel", "vio") and clips.rate == 44100
    assert [c.test for c in clips.clips] == 2 * [True, False, False, False, False, True]
    _write(tmp_path / "vio" / "other.wav", 4000, 44100, channels=2)
    with pytest.raises(ValueError, match="differ in length"):
        audio.read(tmp_path)


def test_a_folder_of_neither_layout_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there are none"):
        audio.read(tmp_path)


def test_gru_trains_both_sides_alike_on_generated_tones(tmp_path, capsys):
    options = "--sets S --steps 6 --hidden 3 --batch 4 --rounds 2 --lr 0.01 --out".split()
    command.main(["gru", *options, str(tmp_path)])
    result = json.loads((tmp_path / "gru.json").read_text())
    entry = result["sets"]["S"]
    assert result["data"]["source"] == "generated tones" and entry["features"] == 19
    plain, ours = (entry["training"][side] for side in ("jax.lax.scan", "parscan_bp.scan"))
    np.testing.assert_allclose(plain["losses"], ours["losses"], rtol=1e-4)
    assert ours["loss_difference"] < 1e-4 and len(set(plain["losses"])) > 1
    assert entry["gradient_error"] <= entry["gradient_tolerance"]
    assert (tmp_path / "gru.png").stat().st_size < figures.LARGEST_PNG
    assert "overhead" in capsys.readouterr().out
