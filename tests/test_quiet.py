"""Hidden messages and warnings are hidden in one thread, without settings of the process."""

import logging
import pickle
import threading
import warnings

import pytest

from isoadapt._utils.quiet import hidden_messages, hidden_warnings


def in_another_thread(action):
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def test_warnings_are_hidden_in_one_thread_only():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        with hidden_warnings(), hidden_warnings():
            warnings.warn("hidden", FutureWarning, stacklevel=1)
            in_another_thread(lambda: warnings.warn("another thread", UserWarning, stacklevel=1))
        with hidden_warnings():
            pass
        warnings.warn("after the block", UserWarning, stacklevel=1)
        assert warnings.filters == before
    assert [str(each.message) for each in caught] == ["another thread", "after the block"]


def test_warnings_that_are_errors_are_hidden_too():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with hidden_warnings():
            warnings.warn("hidden", DeprecationWarning, stacklevel=1)
            with pytest.raises(ValueError, match="a failure"), hidden_warnings():
                raise ValueError("a failure")
            warnings.warn("hidden", DeprecationWarning, stacklevel=1)
        with pytest.raises(DeprecationWarning):
            warnings.warn("shown", DeprecationWarning, stacklevel=1)


def test_filters_that_another_thread_restores_have_no_effect():
    """The other thread saves the filters inside the block and restores them after it."""
    inside, left = threading.Event(), threading.Event()

    def save_and_restore():
        with warnings.catch_warnings():
            inside.set()
            assert left.wait(60)

    before = list(warnings.filters)
    thread = threading.Thread(target=save_and_restore)
    with hidden_warnings():
        assert len(warnings.filters) == len(before) + 1
        pickle.loads(pickle.dumps(warnings.filters))  # as for the processes of a parallel loop
        thread.start()
        assert inside.wait(60)
    left.set()
    thread.join()
    assert warnings.filters == before
    with pytest.warns(UserWarning, match="shown"):
        warnings.warn("shown", UserWarning, stacklevel=1)


@pytest.mark.parametrize("where", ["isoadapt_test", "isoadapt_test.inner", ""])
def test_messages_of_one_logger_are_hidden_in_one_thread_only(where):
    class Handler(logging.Handler):
        def emit(self, record):
            shown.append(record.getMessage())

    shown, handler = [], Handler()
    logging.getLogger(where).addHandler(handler)
    logger, other = (logging.getLogger(f"isoadapt_test.{name}") for name in ("inner", "innermost"))
    try:
        with hidden_messages("isoadapt_test.inner"):
            logger.warning("hidden")
            logger.getChild("child").warning("hidden")
            logger.error("an error")
            if where != "isoadapt_test.inner":
                other.warning("another logger")
            in_another_thread(lambda: logger.warning("another thread"))
            assert logger.getEffectiveLevel() == logging.getLogger().level
        logger.warning("after the block")
    finally:
        logging.getLogger(where).removeHandler(handler)
    others = ["another logger"] if where != "isoadapt_test.inner" else []
    assert shown == ["an error", *others, "another thread", "after the block"]
