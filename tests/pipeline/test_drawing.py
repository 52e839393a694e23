"""A drawn pipeline shows the spans of its table."""

import pytest
from schedule_cases import CASES

from parscan_bp import pipeline, plots


@pytest.mark.parametrize("name", ["GPipe", "ZeroBubble", "DSP(1,1,0;4,2,0)", "FeaturesReplay"])
def test_every_pass_is_a_bar_with_its_batch(name):
    case = CASES[name]
    table = case.schedule.table(case.blocks, case.schedule.on_the_way(case.blocks) + 1)
    axes = plots.draw_pipeline(table).axes[0]
    spans = [s for s in pipeline.timeline(table) if s.task.kind != "update"]
    assert len(axes.patches) == len(axes.texts) == len(spans)
    for bar, label, span in zip(axes.patches, axes.texts, spans, strict=True):
        assert (bar.get_x(), bar.get_width()) == pytest.approx((span.start, span.stop - span.start))
        assert label.get_text() == str(span.task.batch)
    updates = sum(task.kind == "update" for task in table.tasks)
    assert len(axes.lines) == updates
    assert axes.get_title().startswith(table.name)


def test_a_drawing_can_end_early_and_refuses_to_be_endless():
    table = pipeline.PipeDream().table(2, 300)
    with pytest.raises(ValueError, match="until: got 0; a positive number"):
        plots.draw_pipeline(table, until=0)
    with pytest.raises(TypeError, match="until: got 'end', of type str; a number"):
        plots.draw_pipeline(table, until="end")
    with pytest.raises(ValueError, match="until: got None; at most"):
        plots.draw_pipeline(table)
    axes = plots.draw_pipeline(table, until=20.0, title="so").axes[0]
    assert axes.get_xlim() == (0, 20) and axes.get_title() == "so"
