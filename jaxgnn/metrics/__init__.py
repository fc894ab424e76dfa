r"""Scores of predictions: accuracy, ROC AUC, AP, F1, hits@K, MRR, RMSE and MAE.

By the definitions of OGB's evaluators and of scikit-learn. Arrays of NumPy give a Python float,
computed in float64 on the host; arrays of JAX, traced ones too, give a JAX scalar of float32 (of
float64 operands: float64), so that a score can be part of a jitted step.

Labels and predictions have one shape: `[rows]`, or `[rows, tasks]` with a score for each task, of
which the mean over the tasks that have one is returned, as OGB does. A NaN among floating labels
is a label that is not known: it counts nowhere. `mask`, `[rows]`, leaves rows out, such as padding.
A score that is not defined (no rows, or one class alone for ROC AUC and AP) is NaN.
"""

from jaxgnn.metrics._arrays import Score as Score
from jaxgnn.metrics._classes import accuracy, macro_f1, micro_f1
from jaxgnn.metrics._errors import mae, rmse
from jaxgnn.metrics._links import hits_at_k, mrr
from jaxgnn.metrics._ranking import average_precision, roc_auc

__all__ = [
    "accuracy",
    "average_precision",
    "hits_at_k",
    "macro_f1",
    "mae",
    "micro_f1",
    "mrr",
    "rmse",
    "roc_auc",
]
