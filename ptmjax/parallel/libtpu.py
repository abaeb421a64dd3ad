"""How libtpu behaves, which compiles for TPUs and drives them, in a process that only compiles. Imports no jax: jax loads it."""
import os
from pathlib import Path

ALONE = {  # any number of processes may load it, none waits for one that has the TPU; it neither writes logs nor to the screen
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # of this machine; else it says that it does not know
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_LOG_DIR": "disabled",
}
STACK = "fibers_default_thread_stack_size"  # a flag of it, in bytes
GOOGLE = "0x1ae0"  # as a maker of PCI devices


def alone() -> None:
    """Before it is loaded; what the user has set stays."""
    for name, value in ALONE.items():
        os.environ.setdefault(name, value)


def deep() -> None:
    """Before it is loaded to compile for tpu7x: by its own measure of a stack, 0.0.42 overflows it and ends the process over many a step in
    bfloat16. Other versions may not know the flag, so it is given where it is needed alone."""
    given = os.environ.get("LIBTPU_INIT_ARGS", "")
    if STACK not in given:
        os.environ["LIBTPU_INIT_ARGS"] = f"{given} --{STACK}={2**23}".strip()


def has_chips(devices: Path = Path("/sys/bus/pci/devices")) -> bool:
    """Whether this machine may have a TPU."""
    return any(vendor.read_text().strip() == GOOGLE for vendor in devices.glob("*/vendor"))
