"""The noise of imports goes, everything else stays."""
import os
import sys

import pytest

from ptmjax.cli import quiet

NOISE = b"""\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795982420.382638   13269 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be used.
2026-11-29 19:40:01.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary is optimized
"""
NEWS = b"E0000 00:00:1795982420.382638   13269 cuda.cc:1] broken driver\nUserWarning: something of yours\nInfo without a stamp\n"


def test_only_the_noise_is_held_back(capfd):
    with quiet.imports():
        os.write(2, NOISE + NEWS)
        print("from Python", file=sys.stderr, flush=True)
    print("after", file=sys.stderr)
    assert sorted(capfd.readouterr().err.splitlines()) == sorted([*NEWS.decode().splitlines(), "from Python", "after"])


def test_an_import_that_fails_tells_what_it_wrote(capfd):
    with pytest.raises(ImportError), quiet.imports():
        os.write(2, NEWS)
        raise ImportError
    assert capfd.readouterr().err == NEWS.decode()


def test_levels_that_the_user_set_stay(monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    monkeypatch.setenv("GRPC_VERBOSITY", "")
    monkeypatch.delenv("GRPC_VERBOSITY")
    quiet.set_levels()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "0" and os.environ["GRPC_VERBOSITY"] == "ERROR"
