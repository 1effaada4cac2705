// SPDX-License-Identifier: Apache-2.0
// A backing object: the physical memory behind device addresses. One memfd, mapped once into the simulator's own
// address space (the "GPU side" view); exports and IPC hand out further descriptors of the same memfd, so CPU mappings
// outlive the object and keep its bytes. With PEERLANE_SIM_BOARD_FILE it is a file of that device instead (board_file.h),
// which also records the object's device addresses; such memory cannot be exported.
//
// The handle stands for the resource manager's object handle: unique in the process, never reused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "sim/device.hpp"

namespace pl::sim {

class object : public std::enable_shared_from_this<object> {
 public:
  // New zeroed memory on a device; null with `reason` = out_of_memory when the device is full.
  static std::shared_ptr<object> create(device& gpu, std::size_t bytes, result_t& reason);
  // Memory that somebody else made (import, IPC): takes over `fd` in every case. Counts against no device.
  static std::shared_ptr<object> adopt(int fd, std::size_t bytes, int device_ordinal);
  ~object();
  object(const object&) = delete;
  object& operator=(const object&) = delete;

  int fd() const { return fd_; }
  std::size_t bytes() const { return bytes_; }
  std::byte* view() const { return view_; }
  unsigned handle() const { return handle_; }
  int device_ordinal() const { return device_ordinal_; }

  // A descriptor with its own file position (dup would share it), or -1.
  int reopen() const;

  // Adds this memory's mapping to the board file, or removes it. Does nothing without a board file.
  void bind(device_ptr address, std::size_t bytes, std::size_t offset) const;
  void unbind(device_ptr address, std::size_t bytes) const;

 private:
  object(int fd, std::size_t bytes, std::byte* view, int device_ordinal, device* charged, bool is_board_file);

  int fd_;
  std::size_t bytes_;
  std::byte* view_;
  int device_ordinal_;
  device* charged_;  // whose memory it uses up; null for adopted objects
  unsigned handle_;
  bool is_board_file_;
};
using object_ref = std::shared_ptr<object>;

// The visible device whose memory a descriptor (ours or another process's) stands for; null if it is something else.
device* device_of_descriptor(int fd);

// What stands in hClient of this process's objects.
unsigned client_handle();

// The memory behind (hClient, hObject); null if there is none, or not any more.
object_ref find_object(unsigned client, unsigned handle);

}  // namespace pl::sim
