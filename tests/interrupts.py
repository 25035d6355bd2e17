"""Interrupts at each step of a call."""

import sys


class Interrupt:
    """A trace function that raises KeyboardInterrupt at one of the steps of a call.

    Steps are the lines and calls of the given modules.
    """

    def __init__(self, step, modules):
        self.step, self.count = step, 0
        self.files = {module.__file__ for module in modules}

    def __call__(self, frame, event, argument):
        if frame.f_code.co_filename not in self.files:
            return None
        if event in ("call", "line"):
            self.count += 1
            if self.count == self.step:
                raise KeyboardInterrupt
        return self

    def reached(self, action):
        """Whether the call has so many steps; if so, it is interrupted there."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            action()
        except KeyboardInterrupt as error:
            self.error = error  # its traceback keeps the functions alive that were interrupted
        finally:
            sys.settrace(before)
        return self.count >= self.step
