// SPDX-License-Identifier: Apache-2.0
// Model fuzzing of the drop-in C interface: a string of bytes is read as a program of calls with valid, stale, foreign and
// garbage handles, sizes and flags. A model beside it, which knows nothing but gdrapi.h, says for each call which number it
// must return and which bytes the memory must then hold.
//
// Device memory is made of chunks of 2 MiB (each its own memory object), whose contents the model keeps as plain vectors
// that pins share: a pinned chunk outlives its cudaFree.
#pragma once

#include <gdrapi.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace pl::test {

// The program: bytes handed out one by one, zeros when they run out.
class byte_source {
 public:
  byte_source(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  std::uint32_t next() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  std::uint32_t next16() {
    const std::uint32_t low = next();
    return low | next() << 8;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

class gdrapi_model {
 public:
  explicit gdrapi_model(bool may_fork) : may_fork_(may_fork) {}
  ~gdrapi_model();
  gdrapi_model(const gdrapi_model&) = delete;
  gdrapi_model& operator=(const gdrapi_model&) = delete;

  // Runs the program; what went wrong first, empty if nothing did. Everything is released again by finish().
  std::string run(byte_source source);
  std::string finish();
  // Calls made so far by name, to show that the runs reach everything.
  const std::map<std::string, int>& calls() const { return calls_; }

 private:
  static constexpr std::size_t kChunkBytes = 2 << 20;
  static constexpr int kMaxOpens = 40;  // fewer than closed instances stay recognisable, so stale ones remain stale
  using contents = std::shared_ptr<unsigned char[]>;  // zeroed lazily: most of a chunk is never touched

  struct allocation {
    std::uint64_t pointer = 0;
    std::size_t bytes = 0;
  };
  struct pin {
    gdr_mh_t handle{};
    gdr_t owner = nullptr;
    bool live = false, mapped = false;
    std::uint64_t asked = 0, begin = 0, bytes = 0;
    std::vector<contents> chunks;   // from chunk_of(begin) on
    std::uint64_t first_chunk = 0;  // address of chunks[0]
    char* va = nullptr;
    std::size_t mapped_bytes = 0;
  };

  void open(byte_source& source);
  void close(byte_source& source);
  void allocate(byte_source& source);
  void release(byte_source& source);
  void pin_some(byte_source& source);
  void map(byte_source& source);
  void unmap(byte_source& source);
  void unpin(byte_source& source);
  void info(byte_source& source);
  void copy(byte_source& source);
  void small_questions(byte_source& source);
  void fork_and_try();

  // Picks: mostly live ones, sometimes stale or made up. `known` is null for what is not a live object.
  gdr_t pick_session(byte_source& source);
  gdr_mh_t pick_handle(byte_source& source, pin*& known);
  bool is_open(gdr_t g) const;
  int wanted_of_pair(gdr_t g, const pin* known) const;
  bool every_granule_lives(std::uint64_t begin, std::uint64_t end) const;
  std::vector<contents> chunks_under(const pin& p) const;
  unsigned char& byte_at(pin& p, std::uint64_t address);

  void expect(const char* call, int got, int wanted);
  void require(bool truth, const char* claim);

  bool may_fork_;
  bool forked_ = false;
  int opens_ = 0;
  std::vector<gdr_t> sessions_, closed_;
  std::vector<allocation> allocations_;
  std::map<std::uint64_t, contents> chunks_;  // live device memory by address
  std::vector<pin> pins_;                     // dead ones stay: their handles are stale
  std::map<std::string, int> calls_;
  std::string problem_;
};

}  // namespace pl::test
