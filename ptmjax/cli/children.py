"""Commands of ptmjax as processes of their own, one at a time; whatever asks this process for its end asks the one that is at work."""
import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

GRACE = 10  # seconds in which a process answers the Ctrl-C that a terminal sends to both


class Children:
    """Within, SIGTERM is handed on to the process at work (which saves, where it trains) and told by `asked`; a Ctrl-C is raised once
    that process has ended."""

    def __init__(self):
        self.asked, self.at_work, self.before = False, None, None

    def __enter__(self) -> "Children":
        self.before = signal.signal(signal.SIGTERM, self._terminated)
        return self

    def __exit__(self, *_) -> None:
        signal.signal(signal.SIGTERM, self.before)

    def _terminated(self, number: int, frame) -> None:
        self.asked = True
        if self.at_work is not None:
            self.at_work.terminate()

    def run(self, words: Sequence[str]) -> int:
        """Its exit code (128 + N where signal N ended it); it writes where this process does."""
        return self._ended(words)[0]

    def heard(self, words: Sequence[str]) -> tuple[int, str]:
        """(exit code, what it wrote to standard output)."""
        return self._ended(words, stdout=subprocess.PIPE)

    def _ended(self, words: Sequence[str], **how) -> tuple[int, str]:
        sys.stdout.flush()
        with subprocess.Popen([sys.executable, "-m", "ptmjax", *words], text=True, **how) as process, self._at_work(process):
            said, _ = process.communicate()
        code = process.returncode
        return (code if code >= 0 else 128 - code), said or ""

    @contextlib.contextmanager
    def _at_work(self, process: subprocess.Popen) -> Iterator[None]:
        self.at_work = process
        if self.asked:  # while it was being started
            process.terminate()
        try:
            yield
        except KeyboardInterrupt:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            if process.poll() is None:  # it was sent to this process alone
                process.send_signal(signal.SIGINT)
            process.wait()
            raise
        finally:
            self.at_work = None
