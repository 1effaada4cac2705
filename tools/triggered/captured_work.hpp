// SPDX-License-Identifier: Apache-2.0
// Work of a bench_rank's stream, captured once and launched repeatedly.
#pragma once

#include <functional>
#include <utility>

#include "tools/triggered/bench_rank.hpp"

namespace pl::async {

// Must end before the channels whose operations it holds. Not to be launched while a launch runs on another stream.
class captured_work {
 public:
  // `queue` queues on the bench_rank's stream, which is being captured. Its error, or the driver's.
  static result<captured_work> make(const bench_rank& session, const std::function<status()>& queue);
  captured_work(captured_work&& other) noexcept : session_(other.session_), exec_(std::exchange(other.exec_, nullptr)) {}
  captured_work& operator=(captured_work&&) = delete;
  ~captured_work();  // waits for the stream

  void launch() const;  // throws tools::tool_failure

 private:
  captured_work(const bench_rank& session, cu::graph_exec_t exec) : session_(&session), exec_(exec) {}
  const bench_rank* session_;
  cu::graph_exec_t exec_;
};

}  // namespace pl::async
