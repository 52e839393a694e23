"""What closes the gap that late gradients open, each from its paper."""

from parscan_bp.pipeline.remedies.base import Remedy as Remedy
from parscan_bp.pipeline.remedies.compensation import DelayCompensation as DelayCompensation
from parscan_bp.pipeline.remedies.feedback import ErrorFeedback as ErrorFeedback
from parscan_bp.pipeline.remedies.learning_rate import (
    LearningRateByStaleness as LearningRateByStaleness,
)
from parscan_bp.pipeline.remedies.prediction import WeightPrediction as WeightPrediction
from parscan_bp.pipeline.remedies.prediction import stale_params as stale_params

__all__ = [
    "DelayCompensation",
    "ErrorFeedback",
    "LearningRateByStaleness",
    "Remedy",
    "WeightPrediction",
    "stale_params",
]
