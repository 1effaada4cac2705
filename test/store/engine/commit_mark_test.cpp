// SPDX-License-Identifier: Apache-2.0
// Seals of files: what holes hold is zeros, and a large file takes no memory.
#include "store/engine/commit_mark.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>

#include "arch/crc32c.hpp"
#include "test/store/engine/store_fixture.hpp"

namespace pl::store {
namespace {

constexpr std::uint64_t kHoleBytes = std::uint64_t{256} << 20;

class Seals : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::vector<std::pair<off_t, std::string>>& pieces, std::uint64_t size) {
    const int file = ::open((folder_.path() + "/" + name).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    EXPECT_GE(file, 0) << errno;
    for (const auto& [offset, bytes] : pieces)
      EXPECT_EQ(::pwrite(file, bytes.data(), bytes.size(), offset), static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(::ftruncate(file, static_cast<off_t>(size)), 0);
    ::close(file);
    return name;
  }
  file_seal seal(const std::string& name) {
    const auto made = seal_of(folder_.path(), name);
    EXPECT_TRUE(made) << made.error().message;
    return made ? *made : file_seal{};
  }
  temporary_folder folder_;
};

TEST_F(Seals, AreThoseOfTheBytesWhereverTheHolesLie) {
  const std::string part = "some bytes that are no multiple of anything";
  const std::uint64_t size = (std::uint64_t{3} << 20) + 17;
  for (const off_t offset : {off_t{0}, off_t{4096}, off_t{1 << 20}, static_cast<off_t>(size - part.size())}) {
    std::string whole(size, '\0');
    whole.replace(static_cast<std::size_t>(offset), part.size(), part);
    const std::string number = std::to_string(offset);
    const file_seal sparse = seal(write("sparse" + number, {{offset, part}}, size));
    const file_seal full = seal(write("full" + number, {{0, whole}}, size));
    EXPECT_EQ(sparse.size_bytes, size) << offset;
    EXPECT_EQ(sparse.crc, arch::crc32c(whole.data(), whole.size())) << offset;
    EXPECT_EQ(full.crc, sparse.crc) << offset;
    EXPECT_EQ(full.size_bytes, size) << offset;
  }
  EXPECT_EQ(seal(write("empty", {}, 0)), (file_seal{"empty", 0, 0}));
}

TEST_F(Seals, OfALargeFileTakeNoMemoryForIt) {
  write("large", {{0, "first"}, {static_cast<off_t>(kHoleBytes) - 4, "last"}}, kHoleBytes);
  rusage before{}, after{};
  ASSERT_EQ(::getrusage(RUSAGE_SELF, &before), 0);
  EXPECT_EQ(seal("large").size_bytes, kHoleBytes);
  ASSERT_EQ(::getrusage(RUSAGE_SELF, &after), 0);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, static_cast<long>(kHoleBytes / 1024 / 4));  // KiB
}

TEST_F(Seals, OfWhatIsNotThereSayWhich) {
  const auto none = seal_of(folder_.path(), "nothing");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.code(), ENOENT);
  EXPECT_NE(none.error().message.find("/nothing"), std::string::npos) << none.error().message;
}

}  // namespace
}  // namespace pl::store
