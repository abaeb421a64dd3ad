"""Every test runs on the CPU with eight virtual devices; property tests draw the same examples every time."""
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()

import hypothesis  # noqa: E402

hypothesis.settings.register_profile("ptmjax", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("ptmjax")
