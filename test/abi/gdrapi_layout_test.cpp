// SPDX-License-Identifier: Apache-2.0
// The drop-in's binary interface against the literals of the original (gdrapi_layout.inc), in C and in C++.
#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

#define PEERLANE_GDRAPI_IMPLEMENTATION  // declares the symbol gdr_get_info, which keeps the 40-byte struct
#include "gdrapi.h"

#define CHECK(condition) static_assert(condition)
#include "test/abi/gdrapi_layout.inc"
#undef CHECK

// Signatures, written out: a changed parameter type would still compile in most clients and break them at run time.
template <auto Call, class Wanted>
constexpr bool is = std::is_same_v<decltype(Call), Wanted>;
using ul = unsigned long;

static_assert(is<&gdr_open, gdr_t (*)()>);
static_assert(is<&gdr_close, int (*)(gdr_t)>);
static_assert(is<&gdr_pin_buffer, int (*)(gdr_t, ul, size_t, uint64_t, uint32_t, gdr_mh_t*)>);
static_assert(is<&gdr_pin_buffer_v2, int (*)(gdr_t, ul, size_t, uint32_t, gdr_mh_t*)>);
static_assert(is<&gdr_unpin_buffer, int (*)(gdr_t, gdr_mh_t)>);
static_assert(is<&gdr_get_callback_flag, int (*)(gdr_t, gdr_mh_t, int*)>);
static_assert(is<&gdr_get_info, int (*)(gdr_t, gdr_mh_t, gdr_info_v1_t*)>);
static_assert(is<&gdr_get_info_v2, int (*)(gdr_t, gdr_mh_t, gdr_info_v2_t*)>);
static_assert(is<&gdr_map, int (*)(gdr_t, gdr_mh_t, void**, size_t)>);
static_assert(is<&gdr_map_v2, int (*)(gdr_t, gdr_mh_t, void**, size_t, int)>);
static_assert(is<&gdr_unmap, int (*)(gdr_t, gdr_mh_t, void*, size_t)>);
static_assert(is<&gdr_copy_to_mapping, int (*)(gdr_mh_t, void*, const void*, size_t)>);
static_assert(is<&gdr_copy_from_mapping, int (*)(gdr_mh_t, void*, const void*, size_t)>);
static_assert(is<&gdr_runtime_get_version, void (*)(int*, int*)>);
static_assert(is<&gdr_driver_get_version, int (*)(gdr_t, int*, int*)>);
static_assert(is<&gdr_get_attribute, int (*)(gdr_t, gdr_attr_t, int*)>);
static_assert(is<&gdr_get_mapping_type_string, int (*)(gdr_mapping_type_t, const char**)>);

extern "C" unsigned gdrapi_layout_word(int version, int wc_mapping);

TEST(GdrapiLayout, BitFieldsLieInTheWordAtByte36) {
  for (const int version : {1, 2}) {
    EXPECT_EQ(gdrapi_layout_word(version, 0), 1u << 0) << "v" << version << ".mapped";
    EXPECT_EQ(gdrapi_layout_word(version, 1), 1u << 1) << "v" << version << ".wc_mapping";
  }
}
