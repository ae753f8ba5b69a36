"""Draws a run: pictures where matplotlib is installed, the page in any case."""

from pathlib import Path

from loadtest.page import write_page
from loadtest.report import Report
from loadtest.samples import Samples

HOW_TO_INSTALL = "no pictures: matplotlib is not installed (pip install 'batcher[loadtest]', then: loadtest report DIR)"


def render(folder: Path, report: Report, samples: Samples) -> tuple[Path, str | None]:
    """Write the pictures and report.html into the folder; the page's path, and what is missing, if anything is."""
    try:
        from loadtest.pictures import draw_pictures
        from loadtest.token_pictures import draw_token_picture
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        return write_page(folder, report, []), HOW_TO_INSTALL
    drawn = draw_pictures(folder, report, samples) + draw_token_picture(folder, report, samples)
    return write_page(folder, report, drawn), None
