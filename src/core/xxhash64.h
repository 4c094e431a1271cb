// XXH64: a fast hash that tells equal bytes from changed ones. No defence against someone who looks for collisions.
// Source: the specification of xxHash, version 0.2.0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace hone {

/// The hash of bytes that come in pieces; how they were cut does not matter.
class Xxh64 {
 public:
  explicit Xxh64(uint64_t seed = 0);

  Xxh64& update(std::span<const std::byte> bytes);
  Xxh64& update(std::string_view text) { return update(std::as_bytes(std::span(text))); }
  /// The bytes of values without padding.
  template <class Value, size_t N>
  requires std::has_unique_object_representations_v<Value> || std::is_same_v < std::remove_cv_t<Value>,
  float > Xxh64& update(std::span<Value, N> values) {
    return update(std::span<const std::byte>(std::as_bytes(values)));
  }
  Xxh64& update(uint64_t value) { return update(std::span<const uint64_t>(&value, 1)); }

  uint64_t digest() const;

 private:
  static constexpr size_t kStripe = 32;

  void mix_stripe(const std::byte* stripe);

  uint64_t seed_;
  std::array<uint64_t, 4> lanes_;
  std::array<std::byte, kStripe> rest_{};  // behind the last whole stripe
  size_t rest_size_ = 0;
  uint64_t total_ = 0;
};

inline uint64_t xxh64(std::string_view text, uint64_t seed = 0) { return Xxh64(seed).update(text).digest(); }

/// 16 hexadecimal digits.
std::string hash_text(uint64_t hash);

}  // namespace hone
