// DType: the type of one element, after DLPack. Names, sizes, DLPack codes, and the C++ type that goes with each.
// No arithmetic: the small float types here only store bits. Any code may use it; values only, thread-safe.
#pragma once

#include <array>
#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

namespace cistern {

enum class DType : std::uint8_t {
  boolean,  ///< One byte, 0 or 1.
  i8,
  i16,
  i32,
  i64,
  u8,
  u16,
  u32,
  u64,
  f16,   ///< IEEE binary16.
  bf16,  ///< The upper half of an f32.
  f32,
  f64,
  f8_e4m3fn,  ///< 4 bits exponent, 3 bits mantissa; finite and NaN, no infinity.
  f8_e5m2,    ///< 5 bits exponent, 2 bits mantissa; infinities and NaN as in IEEE types.
  c64,        ///< Two f32: real and imaginary part.
};

inline constexpr std::size_t kDTypeCount = 16;

/// What DLPack calls DLDataType; the same three numbers in the same order.
struct DLPackType {
  std::uint8_t code = 0;
  std::uint8_t bits = 0;
  std::uint16_t lanes = 1;
  friend constexpr bool operator==(const DLPackType&, const DLPackType&) = default;
};

struct DTypeInfo {
  std::string_view name;       ///< "f32"
  std::string_view long_name;  ///< "float32", as in array libraries.
  std::uint8_t size;           ///< Bytes of one element.
  DLPackType dlpack;
};

namespace detail {
// Codes: DLDataTypeCode of DLPack 1.1 (float8 from there, bool from 0.8).
inline constexpr std::array<DTypeInfo, kDTypeCount> kDTypes{{
    {"bool", "boolean", 1, {6, 8, 1}},
    {"i8", "int8", 1, {0, 8, 1}},
    {"i16", "int16", 2, {0, 16, 1}},
    {"i32", "int32", 4, {0, 32, 1}},
    {"i64", "int64", 8, {0, 64, 1}},
    {"u8", "uint8", 1, {1, 8, 1}},
    {"u16", "uint16", 2, {1, 16, 1}},
    {"u32", "uint32", 4, {1, 32, 1}},
    {"u64", "uint64", 8, {1, 64, 1}},
    {"f16", "float16", 2, {2, 16, 1}},
    {"bf16", "bfloat16", 2, {4, 16, 1}},
    {"f32", "float32", 4, {2, 32, 1}},
    {"f64", "float64", 8, {2, 64, 1}},
    {"f8_e4m3fn", "float8_e4m3fn", 1, {10, 8, 1}},
    {"f8_e5m2", "float8_e5m2", 1, {12, 8, 1}},
    {"c64", "complex64", 8, {5, 64, 1}},
}};
}  // namespace detail

/// Whether the value is one of the enumerators (it may have come from elsewhere as a number).
constexpr bool is_valid(DType dtype) noexcept { return static_cast<std::size_t>(dtype) < kDTypeCount; }

/// pre: is_valid(dtype).
constexpr const DTypeInfo& info(DType dtype) noexcept { return detail::kDTypes[static_cast<std::size_t>(dtype)]; }
/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) noexcept { return info(dtype).size; }
constexpr std::string_view name_of(DType dtype) noexcept { return info(dtype).name; }
constexpr DLPackType to_dlpack(DType dtype) noexcept { return info(dtype).dlpack; }

/// Nothing when there is no such type here (vectors of lanes, opaque handles, other float8 kinds, ...).
constexpr std::optional<DType> from_dlpack(DLPackType type) noexcept {
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    if (detail::kDTypes[i].dlpack == type) return static_cast<DType>(i);
  }
  return std::nullopt;
}

/// Reads a short or a long name ("bf16", "bfloat16"). Throws invalid_argument naming the text.
DType parse_dtype(std::string_view text);

/// Storage of the types that C++20 lacks: the bits, nothing more.
struct Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};
struct Float8E4M3FN {
  std::uint8_t bits;
};
struct Float8E5M2 {
  std::uint8_t bits;
};

/// The DType of a C++ type: `DTypeOf<T>::value`. Specialise it for types of your own (a vendor's half, ...).
template <typename T>
struct DTypeOf {};

namespace detail {
// Integers by size and sign, so that `long` and `long long` both work; characters are not numbers here.
template <typename T>
concept PlainInteger =
    std::integral<T> && !std::same_as<T, bool> && !std::same_as<T, char> && !std::same_as<T, wchar_t> &&
    !std::same_as<T, char8_t> && !std::same_as<T, char16_t> && !std::same_as<T, char32_t> && sizeof(T) <= 8;

constexpr DType integer_dtype(std::size_t size, bool is_signed) noexcept {
  const DType first = is_signed ? DType::i8 : DType::u8;
  const int step = size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : 3;
  return static_cast<DType>(static_cast<int>(first) + step);
}
}  // namespace detail

template <detail::PlainInteger T>
struct DTypeOf<T> {
  static constexpr DType value = detail::integer_dtype(sizeof(T), std::is_signed_v<T>);
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::boolean;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<std::complex<float>> {
  static constexpr DType value = DType::c64;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<Float8E4M3FN> {
  static constexpr DType value = DType::f8_e4m3fn;
};
template <>
struct DTypeOf<Float8E5M2> {
  static constexpr DType value = DType::f8_e5m2;
};

/// A C++ type that has a DType of the same size.
template <typename T>
concept Element = requires {
  { DTypeOf<T>::value } -> std::convertible_to<DType>;
}
&&std::is_trivially_copyable_v<T> && sizeof(T) == size_of(DTypeOf<T>::value);

template <Element T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

}  // namespace cistern
