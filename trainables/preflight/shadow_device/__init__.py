"""A GPU that is simulated on the CPU, to find out without one whether code would run on it."""

from searchlight.trainables.preflight.shadow_device.device import ShadowDevice
from searchlight.trainables.preflight.shadow_device.shadow import shadow_cuda
from searchlight.trainables.preflight.shadow_device.storages import WrongDevice

__all__ = ["ShadowDevice", "WrongDevice", "shadow_cuda"]
