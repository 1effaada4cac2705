// SPDX-License-Identifier: Apache-2.0
#include "tools/common/report.hpp"

#include <fcntl.h>
#include <peerlane/peerlane.h>
#include <unistd.h>

#include <cstdio>

#include "arch/copy_dispatch.hpp"
#include "base/text.hpp"
#include "base/whole_file.hpp"
#include "os/topology.hpp"
#include "tools/common/nvml.hpp"

namespace pl::tools {

std::string place_thread(const common_options& options, const std::string& bus_id, bool simulated) {
  if (options.cpu == "none") return format_cpu_list(cpus_of_this_thread());
  if (options.cpu != "auto") {
    const auto wanted = must(parse_cpu_list(options.cpu));
    must(pin_this_thread(wanted));
    return format_cpu_list(cpus_of_this_thread());
  }
  const auto machine = must(topology::load());
  const auto near = machine.near_pci_device(bus_id);
  if (!near.remark.empty() && !simulated)
    std::fprintf(stderr, "note: %s; using CPUs %s\n", near.remark.c_str(), format_cpu_list(near.cpus).c_str());
  must(pin_this_thread(near.cpus));
  return format_cpu_list(cpus_of_this_thread());
}

report::report(const invocation& call, const common_options& options, std::string tool)
    : options_(options), file_(std::move(tool), call.command_line), machine_(describe_host()) {
  file_.set_machine(machine_);
  if (options_.json_path != "-") return;
  std::fflush(stdout);
  saved_stdout_ = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  dup2(STDERR_FILENO, STDOUT_FILENO);
}

report::~report() {
  if (saved_stdout_ < 0) return;
  std::fflush(stdout);
  // The result was asked for on standard output; the text, for which standard error was full or closed, was not.
  std::clearerr(stdout);
  dup2(saved_stdout_, STDOUT_FILENO);
  close(saved_stdout_);
}

void report::describe(const gpu_session* gpu, const gdr_buffer* buffer, const std::string& cpus) {
  machine_.cpus = cpus;
  machine_.copy_to_device = arch::write_isa_name();
  machine_.copy_to_host = arch::read_isa_name();
  if (gpu != nullptr) {
    describe_gpu(machine_, gpu->cuda(), gpu->ordinal());
    if (!gpu->simulated())
      if (const auto nvml = nvml_device::open(gpu->bus_id(), nullptr))
        if (const auto clocks = nvml->clocks()) {
          machine_.gpu_sm_clock_mhz = static_cast<int>(clocks->sm_mhz);
          machine_.gpu_memory_clock_mhz = static_cast<int>(clocks->memory_mhz);
        }
  }
  // The C interface does not name its backend; the session of the C++ one opens the same.
  peerlane_session_t session = nullptr;
  if (gpu != nullptr && peerlane_session_open(nullptr, &session) == 0) {
    machine_.backend = peerlane_session_backend_name(session);
    peerlane_session_close(session);
  }
  if (buffer != nullptr) machine_.mapping_type = buffer->mapping_type();
  file_.set_machine(machine_);
}

void report::set_mapping_type(const std::string& name) {
  machine_.mapping_type = name;
  file_.set_machine(machine_);
}

void report::write_so_far(const result_file& so_far) const {
  if (!options_.json_path.empty() && saved_stdout_ < 0 && is_replaceable(options_.json_path))
    must(so_far.write(options_.json_path));
}

void report::write() {
  if (options_.json_path.empty()) return;
  if (saved_stdout_ < 0) return must(file_.write(options_.json_path));
  std::fflush(stdout);
  const std::string text = file_.text();
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(saved_stdout_, text.data() + done, text.size() - done);
    if (wrote <= 0) throw tool_failure("standard output cannot be written");
    done += static_cast<std::size_t>(wrote);
  }
}

}  // namespace pl::tools
