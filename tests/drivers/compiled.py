"""Fixtures for tests that train the tiny runs again and again: import both."""
import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """The folder where tests and the processes they start keep what they compiled."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module", autouse=True)
def compiled(programs):
    """Makes this process use it, as long as the tests of the file run."""
    wanted = {"jax_compilation_cache_dir": str(programs), "jax_persistent_cache_min_compile_time_secs": 0}
    before = {name: getattr(jax.config, name) for name in wanted}
    for names in (wanted, before):
        for name, value in names.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        if names is wanted:
            yield programs
