"""The figure that curves are drawn on."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class CurveFigure(Figure):
    """A figure that belongs to no window and no backend; every notebook can show it."""

    def _repr_png_(self) -> bytes:
        """What a notebook shows."""
        picture = io.BytesIO()
        self.savefig(picture, format="png", dpi=110)
        return picture.getvalue()
