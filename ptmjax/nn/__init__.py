"""Pure layers."""
