"""The devices that WebGPU can run on, by name: ONNX Runtime does not say which it took.

Dawn, its WebGPU, runs on Vulkan where there is no Direct3D and no Metal; Vulkan's loader names the
devices. What Vulkan's structures look like: https://registry.khronos.org/vulkan/specs/.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

__all__ = ["webgpu_adapters"]

_LOADER = "libvulkan.so.1"
"""As Dawn asks for it, so that both find the same one."""

_VULKAN_1_1 = 1 << 22 | 1 << 12
_SUCCESS = 0
_MOST_DEVICES = 16


class _Head(ctypes.Structure):
    """What every structure of Vulkan begins with: its kind, and what is chained to it."""

    _fields_ = (("kind", ctypes.c_uint32), ("next", ctypes.c_void_p))


class _Application(ctypes.Structure):
    _fields_ = (
        ("head", _Head),
        ("name", ctypes.c_char_p),
        ("version", ctypes.c_uint32),
        ("engine", ctypes.c_char_p),
        ("engine_version", ctypes.c_uint32),
        ("api", ctypes.c_uint32),
    )


class _NewInstance(ctypes.Structure):
    _fields_ = (
        ("head", _Head),
        ("flags", ctypes.c_uint32),
        ("application", ctypes.POINTER(_Application)),
        ("layers", ctypes.c_uint32),
        ("layer_names", ctypes.c_void_p),
        ("extensions", ctypes.c_uint32),
        ("extension_names", ctypes.c_void_p),
    )


class _Subgroups(ctypes.Structure):
    _fields_ = (("head", _Head), ("size", ctypes.c_uint32), ("others", ctypes.c_uint32 * 3))


class _Device(ctypes.Structure):
    _fields_ = (
        ("head", _Head),
        ("numbers", ctypes.c_uint32 * 5),
        ("name", ctypes.c_char * 256),
        # Identifiers and limits; what this version of Vulkan writes there ends before.
        ("rest", ctypes.c_char * 2048),
    )


@cache
def webgpu_adapters() -> tuple[str, ...]:
    """Devices and the size of their subgroups, such as ``NVIDIA L4, subgroups of 32``.

    Where there are several, Dawn takes a fast one. Empty where there is none, and where WebGPU is
    not Vulkan: on Windows and macOS. Looked up once a process.
    """
    if not sys.platform.startswith("linux"):
        return ()
    try:
        vulkan = ctypes.CDLL(_LOADER)
    except OSError:
        return ()
    application = _Application(head=_Head(kind=0), api=_VULKAN_1_1)
    wanted = _NewInstance(head=_Head(kind=1), application=ctypes.pointer(application))
    instance = ctypes.c_void_p()
    if vulkan.vkCreateInstance(ctypes.byref(wanted), None, ctypes.byref(instance)) != _SUCCESS:
        return ()
    try:
        return tuple(_name(vulkan, device) for device in _devices(vulkan, instance))
    finally:
        vulkan.vkDestroyInstance(instance, None)


def _devices(vulkan: Any, instance: ctypes.c_void_p) -> list[ctypes.c_void_p]:
    count = ctypes.c_uint32(_MOST_DEVICES)
    devices = (ctypes.c_void_p * _MOST_DEVICES)()
    if vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), devices) < _SUCCESS:
        return []
    return [ctypes.c_void_p(device) for device in devices[: count.value]]


def _name(vulkan: Any, device: ctypes.c_void_p) -> str:
    subgroups = _Subgroups(head=_Head(kind=1000094000))
    told = _Device(head=_Head(kind=1000059001, next=ctypes.addressof(subgroups)))
    vulkan.vkGetPhysicalDeviceProperties2(device, ctypes.byref(told))
    name: str = told.name.decode(errors="replace")
    return f"{name}, subgroups of {subgroups.size}"
