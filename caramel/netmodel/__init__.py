"""The network: how long an all-reduce takes, measured or given; and the choice that follows.

Import from here: ``from caramel.netmodel import NetworkModel, load``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from caramel.util.lazy_names import lazy_names

_PLACES = {
    "as_text": "report",
    "Choice": "ranking",
    "choose_collective": "choice",
    "Collective": "choice",
    "CollectiveOptions": "choice",
    "Contention": "contention",
    "Cost": "costs",
    "Curve": "line",
    "factors": "costs",
    "fit_cost": "costs",
    "fit_line": "line",
    "Line": "line",
    "load": "file",
    "NetworkModel": "model",
    "Prediction": "ranking",
    "Sample": "line",
    "save": "file",
    "save_plot": "plot",
}

if TYPE_CHECKING:
    from caramel.netmodel.choice import Collective, CollectiveOptions, choose_collective
    from caramel.netmodel.contention import Contention
    from caramel.netmodel.costs import Cost, factors, fit_cost
    from caramel.netmodel.file import load, save
    from caramel.netmodel.line import Curve, Line, Sample, fit_line
    from caramel.netmodel.model import NetworkModel
    from caramel.netmodel.plot import save_plot
    from caramel.netmodel.ranking import Choice, Prediction
    from caramel.netmodel.report import as_text

__all__ = [
    "as_text",
    "Choice",
    "choose_collective",
    "Collective",
    "CollectiveOptions",
    "Contention",
    "Cost",
    "Curve",
    "factors",
    "fit_cost",
    "fit_line",
    "Line",
    "load",
    "NetworkModel",
    "Prediction",
    "Sample",
    "save",
    "save_plot",
]

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
