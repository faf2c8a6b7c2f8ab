"""A plot of the accuracy matrix, whose columns show forgetting."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from searchlight.models.liquid.continual.accuracy_matrix import Matrix

BACKGROUND, INK, PALE = "#FFFFFF", "#222222", "#FFFFFF"
LOW, HIGH = (236, 236, 238), (24, 66, 120)  # light gray to dark blue: brightness alone shows the score
DARK = 0.62  # above this share, white text is more readable
FRAME = "#E8862E"
CELL_WIDTH, CELL_HEIGHT = 68, 44
MARGIN, HEADER, NAMES = 20, 64, 30


def draw_matrix(matrix: Matrix, names: Sequence[str], title: str) -> NDArray[np.uint8]:
    """Render a heat map: a row for each number of learned tasks, a column for each task, and the score in each cell.

    Unknown rows are blank. The score of the task that was just learned has a frame.

    Args:
        matrix: The matrix to show.
        names: Of the tasks, in their order.
        title: Above the heat map.

    Returns:
        RGB, shape (height, width, 3).
    """
    title_font, font = ImageFont.load_default(16), ImageFont.load_default(14)
    beside = ["before any", *(f"after {name}" for name in names)]
    left = MARGIN + int(max(font.getlength(text) for text in beside)) + 12
    column = max(CELL_WIDTH, int(max(font.getlength(name) for name in names)) + 12)
    width = max(left + column * matrix.tasks, MARGIN + int(title_font.getlength(title))) + MARGIN
    top = HEADER + NAMES

    image = Image.new("RGB", (width, top + CELL_HEIGHT * len(beside) + MARGIN), BACKGROUND)
    pen = ImageDraw.Draw(image)
    pen.text((MARGIN, HEADER // 2), title, INK, title_font, anchor="lm")
    for task, name in enumerate(names):
        pen.text((left + column * task + column // 2, HEADER + NAMES // 2), name, INK, font, anchor="mm")
    for number, text in enumerate(beside):
        pen.text((left - 12, top + CELL_HEIGHT * number + CELL_HEIGHT // 2), text, INK, font, anchor="rm")

    for number, row in enumerate(matrix.rows):
        for task, score in enumerate(row):
            x, y = left + column * task, top + CELL_HEIGHT * number
            share = min(1.0, max(0.0, score))
            color = tuple(round(a + share * (b - a)) for a, b in zip(LOW, HIGH, strict=True))
            frame = FRAME if number == task + 1 else color
            pen.rectangle((x, y, x + column - 2, y + CELL_HEIGHT - 2), color, frame, width=2)
            middle = (x + column // 2, y + CELL_HEIGHT // 2)
            pen.text(middle, f"{score:.2f}", PALE if share > DARK else INK, font, anchor="mm")
    return np.array(image)
