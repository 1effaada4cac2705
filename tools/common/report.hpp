// SPDX-License-Identifier: Apache-2.0
// What a benchmark does around its measurement: place the thread, describe the machine, write the result file.
#pragma once

#include <memory>

#include "measure/result_file.hpp"
#include "tools/common/gdr_session.hpp"
#include "tools/common/options.hpp"

namespace pl::tools {

// Pins this thread as `options.cpu` asks; returns the CPUs it may run on as text. Prints a note on stderr if "auto" found no
// near CPUs on a real GPU. Throws for a bad list.
std::string place_thread(const common_options& options, const std::string& bus_id, bool simulated);

// The result file of one run. With --json - the text goes to stderr from construction on, so that standard output is
// nothing but JSON.
class report {
 public:
  report(const invocation& call, const common_options& options, std::string tool);
  ~report();
  report(const report&) = delete;
  report& operator=(const report&) = delete;

  result_file& file() { return file_; }
  // Fills the machine block from the GPU (may be null), the mapping (may be null) and the thread's CPUs.
  void describe(const gpu_session* gpu, const gdr_buffer* buffer, const std::string& cpus);
  void set_mapping_type(const std::string& name);
  const machine_facts& machine() const { return machine_; }
  // Writes the file if one was asked for. Throws when it cannot be written.
  void write();
  // Writes the state of a run that is not over into the same file, so that a run that is cut off leaves one. Nothing
  // with --json -.
  void write_so_far(const result_file& so_far) const;

 private:
  common_options options_;
  result_file file_;
  machine_facts machine_;
  int saved_stdout_ = -1;
};

}  // namespace pl::tools
