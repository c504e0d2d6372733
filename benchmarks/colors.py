"""The colours of all plots: of Okabe and Ito's palette, which all kinds of colour vision tell apart."""

OURS = "#D55E00"
"""This library. No other contender has this colour in any plot."""

MIRRORED = "#0072B2"
"""MultiWorkerMirroredStrategy."""

HOROVOD = "#009E73"

OTHERS = "#7A7A7A"
"""Peers that are drawn together, or one of several that matter less."""

TENSORFLOW = ("#56B4E9", "#CC79A7", "#7A7A7A")
"""TensorFlow's own all-reduces, several of them."""

BOUND = "#000000"
"""What nothing can be below."""

SHADES = ("#C9CDD2", "#9AA1A9", "#6B737C", "#3D444B")
"""A number that grows, from light to dark."""
