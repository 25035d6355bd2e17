"""Tasks of many classes, CLINC150 and Banking77, some of whose classes are left out."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from benchmarks._data import read_table

CLINC150_LEFT_OUT = (
    "apr balance book_hotel calculator calendar_update calories change_accent directions "
    "do_you_have_pets expiration_date income ingredient_substitution lost_luggage maybe "
    "measurement_conversion mpg order_checks pto_balance reminder_update "
    "replacement_card_duration restaurant_reservation schedule_meeting spending_history tell_joke "
    "time tire_pressure todo_list_update travel_notification user_name where_are_you_from"
)
N_BANKING77 = 60  # classes that are kept, the first by name
ROWS = {"clinc150": 25, "banking77": 50}  # of each class that is fine-tuned on
Rows = tuple[list[str], NDArray[np.str_]]


def training_texts(task: str) -> Rows:
    """Return the first training texts of each class that is kept, and their classes."""
    texts, names = _rows(task, "train")
    first = np.zeros(len(names), bool)
    for name in {*names} - {*left_out(task)}:
        first[np.flatnonzero(names == name)[: ROWS[task]]] = True
    return _chosen(texts, names, first)


def unseen_texts(task: str, kept: bool = True) -> Rows:
    """Return the test texts of the classes that are kept, or of those that are left out."""
    texts, names = _rows(task, "test")
    return _chosen(texts, names, np.isin(names, left_out(task)) != kept)


def left_out(task: str) -> list[str]:
    """Return the classes that are not fine-tuned on."""
    if task == "clinc150":
        return CLINC150_LEFT_OUT.split()
    return sorted({*_rows(task, "train")[1]})[N_BANKING77:]


def _chosen(texts: list[str], names: NDArray[np.str_], rows: NDArray[np.bool_]) -> Rows:
    return [texts[i] for i in np.flatnonzero(rows)], names[rows]


@cache
def _rows(task: str, split: str) -> Rows:
    return read_table(task, split)
