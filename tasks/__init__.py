"""Every shipped task, registered by name at import. Import it as ptmjax.tasks, never as tasks."""
from ptmjax.tasks import chinese, labelled, multilingual, pretrain, rates  # noqa: F401
