// DType: names, sizes, DLPack numbers, C++ types.
#include "cistern/dtype.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "cistern/error.hpp"

namespace cistern {
namespace {

constexpr DType at(std::size_t i) { return static_cast<DType>(i); }

TEST(DTypeTest, NamesAreReadBack) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    EXPECT_EQ(parse_dtype(info(at(i)).name), at(i));
    EXPECT_EQ(parse_dtype(info(at(i)).long_name), at(i));
    names.insert(info(at(i)).name);
    names.insert(info(at(i)).long_name);
  }
  EXPECT_EQ(names.size(), 2 * kDTypeCount);
}

TEST(DTypeTest, UnknownNamesAreRefusedByName) {
  for (const char* text : {"", "F32", "float", "f8_e4m3", "f8_e5m2fn", "complex128", "f32 "}) {
    try {
      parse_dtype(text);
      ADD_FAILURE() << text;
    } catch (const invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find("\"" + std::string(text) + "\""), std::string::npos);
    }
  }
}

TEST(DTypeTest, SizesAndDLPackNumbers) {
  const struct {
    DType dtype;
    std::size_t size;
    DLPackType dlpack;
  } expected[] = {
      {DType::boolean, 1, {6, 8, 1}}, {DType::i8, 1, {0, 8, 1}},         {DType::i16, 2, {0, 16, 1}},
      {DType::i32, 4, {0, 32, 1}},    {DType::i64, 8, {0, 64, 1}},       {DType::u8, 1, {1, 8, 1}},
      {DType::u16, 2, {1, 16, 1}},    {DType::u32, 4, {1, 32, 1}},       {DType::u64, 8, {1, 64, 1}},
      {DType::f16, 2, {2, 16, 1}},    {DType::bf16, 2, {4, 16, 1}},      {DType::f32, 4, {2, 32, 1}},
      {DType::f64, 8, {2, 64, 1}},    {DType::f8_e4m3fn, 1, {10, 8, 1}}, {DType::f8_e5m2, 1, {12, 8, 1}},
      {DType::c64, 8, {5, 64, 1}},
  };
  EXPECT_EQ(std::size(expected), kDTypeCount);
  for (const auto& [dtype, size, dlpack] : expected) {
    EXPECT_EQ(size_of(dtype), size) << name_of(dtype);
    EXPECT_EQ(to_dlpack(dtype), dlpack) << name_of(dtype);
    EXPECT_EQ(from_dlpack(dlpack), dtype) << name_of(dtype);
    EXPECT_EQ(dlpack.bits, 8 * size) << name_of(dtype);
  }
}

TEST(DTypeTest, OtherDLPackTypesAreNone) {
  EXPECT_FALSE(from_dlpack({2, 32, 4}));   // Four lanes.
  EXPECT_FALSE(from_dlpack({3, 64, 1}));   // Opaque.
  EXPECT_FALSE(from_dlpack({8, 8, 1}));    // e4m3 with infinities.
  EXPECT_FALSE(from_dlpack({11, 8, 1}));   // e4m3fnuz.
  EXPECT_FALSE(from_dlpack({13, 8, 1}));   // e5m2fnuz.
  EXPECT_FALSE(from_dlpack({5, 128, 1}));  // complex128.
  EXPECT_FALSE(from_dlpack({6, 1, 1}));    // Packed bool.
}

TEST(DTypeTest, CppTypes) {
  static_assert(dtype_of<bool> == DType::boolean && dtype_of<signed char> == DType::i8);
  static_assert(dtype_of<std::int16_t> == DType::i16 && dtype_of<int> == DType::i32);
  static_assert(dtype_of<long> == dtype_of<std::int64_t> && dtype_of<long long> == DType::i64);
  static_assert(dtype_of<std::uint8_t> == DType::u8 && dtype_of<std::uint16_t> == DType::u16);
  static_assert(dtype_of<unsigned> == DType::u32 && dtype_of<unsigned long long> == DType::u64);
  static_assert(dtype_of<float> == DType::f32 && dtype_of<double> == DType::f64);
  static_assert(dtype_of<std::complex<float>> == DType::c64);
  static_assert(dtype_of<Float16> == DType::f16 && dtype_of<BFloat16> == DType::bf16);
  static_assert(dtype_of<Float8E4M3FN> == DType::f8_e4m3fn && dtype_of<Float8E5M2> == DType::f8_e5m2);
  static_assert(!Element<char> && !Element<long double> && !Element<std::complex<double>> && !Element<int*>);
  static_assert(is_valid(DType::c64) && !is_valid(at(kDTypeCount)));
}

struct MyHalf {
  std::uint16_t bits;
};

}  // namespace

template <>
struct DTypeOf<MyHalf> {
  static constexpr DType value = DType::f16;
};

namespace {
TEST(DTypeTest, TypesOfTheUser) { static_assert(dtype_of<MyHalf> == DType::f16); }
}  // namespace
}  // namespace cistern
