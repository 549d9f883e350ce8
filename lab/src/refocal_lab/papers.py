"""The four papers: how to cite them, by the numbers that begin the ids of claims and figures."""

from __future__ import annotations

from typing import NamedTuple


class Paper(NamedTuple):
    """A paper.

    Attributes:
        short: Author and year, for cells of tables.
        citation: Author and year, for running text.
        reference: Authors, title and venue.
    """

    short: str
    citation: str
    reference: str


PAPERS = {
    "001": Paper(
        "Charoenphakdee 2021",
        "Charoenphakdee et al. (2021)",
        "N. Charoenphakdee, J. Vongkulbhisal, N. Chairatanakul, M. Sugiyama: On Focal Loss for Class-Posterior "
        "Probability Estimation: A Theoretical Perspective. CVPR 2021, and the talk about it",
    ),
    "002": Paper(
        "Mukhoti 2020",
        "Mukhoti et al. (2020)",
        "J. Mukhoti, V. Kulharia, A. Sanyal, S. Golodetz, P. Torr, P. Dokania: The Intriguing Effects of Focal Loss on "
        "the Calibration of Deep Neural Networks. Version under review for ICLR 2020",
    ),
    "003": Paper(
        "Komisarenko 2024",
        "Komisarenko and Kull (2024)",
        "V. Komisarenko, M. Kull: Improving Calibration by Relating Focal Loss, Temperature Scaling, and Properness. "
        "ECAI 2024",
    ),
    "004": Paper(
        "Kimura 2024",
        "Kimura and Naganuma (2024)",
        "M. Kimura, H. Naganuma: Geometric Insights into Focal Loss: Reducing Curvature for Enhanced Model "
        "Calibration. 2024",
    ),
}
