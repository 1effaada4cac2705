// SPDX-License-Identifier: Apache-2.0
// "There is no udev": what the static hwloc archive needs to link (CMakeLists.txt says why).
//
// hwloc treats a null udev context as a machine without udev and reads sysfs itself. It never calls the others then.

extern "C" {

struct udev;
struct udev_device;

udev* udev_new();
udev* udev_unref(udev* context);
udev_device* udev_device_new_from_subsystem_sysname(udev* context, const char* subsystem, const char* name);
const char* udev_device_get_property_value(udev_device* device, const char* key);
udev_device* udev_device_unref(udev_device* device);

udev* udev_new() { return nullptr; }
udev* udev_unref(udev*) { return nullptr; }
udev_device* udev_device_new_from_subsystem_sysname(udev*, const char*, const char*) { return nullptr; }
const char* udev_device_get_property_value(udev_device*, const char*) { return nullptr; }
udev_device* udev_device_unref(udev_device*) { return nullptr; }
}
