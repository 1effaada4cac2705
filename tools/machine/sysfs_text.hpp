// SPDX-License-Identifier: Apache-2.0
// One-line files of sysfs and procfs.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace pl::tools::topo {

// The text without white space around it; nothing if the file is absent or refuses to be read (sysfs answers EINVAL for
// the speed of a network card without a link).
std::optional<std::string> read_text(const std::filesystem::path& file);

// A decimal or 0x-hex number that the text begins with; nothing if it does not begin with one.
std::optional<long long> leading_integer(const std::string& text);
std::optional<long long> read_integer(const std::filesystem::path& file);

// Name of what a symbolic link points at: "12" for iommu_group -> ../../kernel/iommu_groups/12.
std::optional<std::string> link_target_name(const std::filesystem::path& link);

// Names in a folder, "mlx5_2" before "mlx5_10"; empty if there is no such folder.
std::vector<std::string> sorted_names(const std::filesystem::path& folder);

// Digits compare as numbers, everything else as text.
bool natural_less(const std::string& left, const std::string& right);

}  // namespace pl::tools::topo
