// Checksums: CRC-32C, which files and records carry, and XXH64, which tells equal bytes from changed ones.
//
// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78; RFC 3720 appendix B.4 has test vectors).
//
// Three lanes of the CPU's crc32 instruction, joined by tables, since one lane waits 3 cycles for each 8 bytes: on a
// core of an EPYC 25 GB/s from the cache, 12 GB/s from memory. A disk that takes 250 MB/s spends 1 to 2 % more on a
// file. Without SSE 4.2: a table.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace hone {

/// The checksum of what `crc` is the checksum of, followed by `bytes`. Of nothing it is 0.
uint32_t extend_crc32c(uint32_t crc, std::span<const std::byte> bytes);

inline uint32_t crc32c(std::span<const std::byte> bytes) { return extend_crc32c(0, bytes); }
inline uint32_t crc32c(std::string_view bytes) { return crc32c(std::as_bytes(std::span(bytes))); }

/// The checksum of two byte sequences one after the other, from theirs and the second one's length.
uint32_t join_crc32c(uint32_t first, uint32_t second, uint64_t second_bytes);

/// The checksum of a TFRecord: rotated and offset, so that a checksum of data that holds checksums stays strong.
uint32_t masked_crc32c(std::string_view bytes);

// XXH64: a fast hash that tells equal bytes from changed ones. No defence against someone who looks for collisions.
// Source: the specification of xxHash, version 0.2.0.

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
