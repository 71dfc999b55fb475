// Views, checked access and texts of TypedBuffer; errors of Shape. No state.
#include "cistern/typed_buffer.hpp"

#include <algorithm>
#include <string>

#include "cistern/error.hpp"

namespace cistern {

namespace {

void check_rank(std::size_t rank) {
  if (rank > kMaxRank) {
    throw invalid_argument("Shape: at most " + std::to_string(kMaxRank) + " dimensions, got " + std::to_string(rank));
  }
}

std::string describe(DType dtype, const Shape& shape) { return std::string(name_of(dtype)) + to_string(shape); }

void check_not_empty(const TypedBuffer& buffer, const char* what) {
  if (!buffer) throw invalid_argument(std::string("TypedBuffer::") + what + ": the handle is empty");
}

void check_dtype(DType dtype, const char* what) {
  if (!is_valid(dtype)) {
    throw invalid_argument(std::string("TypedBuffer::") + what + ": there is no dtype number " +
                           std::to_string(static_cast<unsigned>(dtype)));
  }
}

[[noreturn]] void fail_outside(const char* what, DType dtype, const Shape& shape, std::size_t byte_offset,
                               const TypedBuffer& whole) {
  throw invalid_argument(std::string("TypedBuffer::") + what + ": " + describe(dtype, shape) + " at byte " +
                         std::to_string(byte_offset) + " does not lie within " + to_string(whole));
}

}  // namespace

Shape::Shape(std::span<const std::size_t> dims) {
  check_rank(dims.size());
  std::array<std::uint64_t, kMaxRank> values{};
  const std::array<bool, kMaxRank> negative{};
  std::copy(dims.begin(), dims.end(), values.begin());
  *this = make(values.data(), negative.data(), dims.size());
}

Shape::Shape(std::span<const std::int64_t> dims) {
  check_rank(dims.size());
  std::array<std::uint64_t, kMaxRank> values{};
  std::array<bool, kMaxRank> negative{};
  for (std::size_t i = 0; i < dims.size(); ++i) {
    values[i] = static_cast<std::uint64_t>(dims[i]);
    negative[i] = dims[i] < 0;
  }
  *this = make(values.data(), negative.data(), dims.size());
}

Shape Shape::make(const std::uint64_t* values, const bool* negative, std::size_t rank) {
  Shape shape;
  shape.extents_.set_rank(rank);
  bool wide = false;
  bool overflow = false;
  bool zero = false;
  for (std::size_t i = 0; i < rank; ++i) {
    const std::uint64_t value = values[i];
    if (negative[i]) {
      throw invalid_argument("Shape: an extent must not be negative, got " +
                             std::to_string(static_cast<std::int64_t>(value)));
    }
    // DLPack and every array library keep extents in signed 64 bits.
    if (value > static_cast<std::uint64_t>(INT64_MAX)) {
      throw invalid_argument("Shape: an extent must fit in 63 bits, got " + std::to_string(value));
    }
    shape.extents_.low[i / 2] |= (value & UINT32_MAX) << (i % 2 * 32);
    if (value >> 32 != 0) {
      if (wide) throw invalid_argument("Shape: only one extent may be 2^32 or more");
      wide = true;
      shape.extents_.rest |= static_cast<std::uint64_t>(i) << 32 | value >> 32;
    }
    overflow |= __builtin_mul_overflow(shape.count_, static_cast<std::size_t>(value), &shape.count_);
    zero |= value == 0;
  }
  if (overflow) shape.count_ = zero ? 0 : kTooMany;
  return shape;
}

void Shape::throw_overflow() { throw invalid_argument("Shape: the number of elements does not fit in 64 bits"); }

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.rank(); ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::string to_string(const TypedBuffer& buffer) {
  if (!buffer) return "an empty handle";
  return describe(buffer.dtype(), buffer.shape()) + ", " + std::to_string(buffer.byte_len()) + " bytes";
}

TypedBuffer TypedBuffer::slice_view(std::size_t byte_offset, std::size_t elements) const {
  check_not_empty(*this, "slice_view");
  const DType dtype = bits_.extents.dtype();
  const Shape shape(elements);
  std::size_t bytes = 0;
  const bool within = shape.count_bytes(size_of(dtype), bytes) && byte_offset <= bits_.byte_len &&
                      bytes <= bits_.byte_len - byte_offset;
  if (!within) fail_outside("slice_view", dtype, shape, byte_offset, *this);
  return view(byte_offset, dtype, shape);
}

TypedBuffer TypedBuffer::view(std::size_t byte_offset, DType dtype, const Shape& shape) const {
  check_not_empty(*this, "view");
  check_dtype(dtype, "view");
  std::size_t bytes = 0;
  if (!shape.count_bytes(size_of(dtype), bytes) || byte_offset > bits_.byte_len ||
      bytes > bits_.byte_len - byte_offset) {
    fail_outside("view", dtype, shape, byte_offset, *this);
  }
  TypedBuffer part(*this);
  part.bits_.address += byte_offset;
  part.bits_.byte_len = bytes;
  part.bits_.extents = shape.extents_;
  part.bits_.extents.set_handle(dtype, detail::kView);  // A copy, so not the first handle.
  return part;
}

TypedBuffer TypedBuffer::reshape(const Shape& shape) const {
  check_not_empty(*this, "reshape");
  std::size_t bytes = 0;
  if (!shape.count_bytes(size_of(bits_.extents.dtype()), bytes) || bytes != bits_.byte_len) {
    throw invalid_argument("TypedBuffer::reshape: " + describe(bits_.extents.dtype(), shape) +
                           " has not as many elements as " + to_string(*this));
  }
  return view(0, bits_.extents.dtype(), shape);
}

void TypedBuffer::record_use(const Stream& stream) const {
  check_not_empty(*this, "record_use");
  detail::detail_of(*bits_.slot).owner->record_use(*bits_.slot, stream);
}

std::byte* TypedBuffer::foreign_data() const {
  return static_cast<std::byte*>(detail::detail_of(*bits_.slot).buffer.raw_ptr()) + byte_offset();
}

std::byte* TypedBuffer::checked_data(DType wanted, std::size_t alignment) const {
  check_not_empty(*this, "as_span");
  if (wanted != bits_.extents.dtype()) {
    throw invalid_argument("TypedBuffer::as_span: elements are " + std::string(name_of(bits_.extents.dtype())) +
                           ", asked for as " + std::string(name_of(wanted)));
  }
  std::byte* bytes = data();
  if (reinterpret_cast<std::uintptr_t>(bytes) % alignment != 0) {
    throw invalid_argument("TypedBuffer::as_span: " + to_string(*this) + " starts at byte " +
                           std::to_string(byte_offset()) + " of its buffer, which is not aligned to " +
                           std::to_string(alignment));
  }
  return bytes;
}

}  // namespace cistern
