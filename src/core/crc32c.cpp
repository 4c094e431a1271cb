#include "core/crc32c.h"

#include <array>
#include <cstring>

namespace hone {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78u;

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0u);
    table[i] = crc;
  }
  return table;
}

constexpr auto kTable = make_table();

/// The product of two polynomials over GF(2) modulo the CRC's, bits reflected (x^0 is the highest bit).
constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = uint32_t{1} << 31; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = (b >> 1) ^ (b & 1 ? kPolynomial : 0u);
  }
  return product;
}

/// x^(8 · bytes): what a checksum is multiplied by when so many bytes follow.
constexpr uint32_t power_of_bytes(uint64_t bytes) {
  uint32_t power = uint32_t{1} << 31, square = uint32_t{1} << 23;  // x^0, x^8
  for (; bytes != 0; bytes >>= 1) {
    if (bytes & 1) power = multiply(power, square);
    square = multiply(square, square);
  }
  return power;
}

uint32_t extend_by_table(uint32_t state, const unsigned char* bytes, size_t count) {
  for (size_t i = 0; i < count; ++i) state = (state >> 8) ^ kTable[(state ^ bytes[i]) & 0xFFu];
  return state;
}

#if defined(__x86_64__)

constexpr size_t kLane = 4096;  // bytes of each of the three lanes; a multiple of 8

/// A checksum's state moved past kLane bytes, a table for each of its four bytes.
constexpr std::array<std::array<uint32_t, 256>, 4> make_shift() {
  const uint32_t power = power_of_bytes(kLane);
  std::array<std::array<uint32_t, 256>, 4> tables{};
  for (size_t byte = 0; byte < 4; ++byte) {
    for (uint32_t value = 0; value < 256; ++value) tables[byte][value] = multiply(value << (8 * byte), power);
  }
  return tables;
}

uint32_t past_lane(uint32_t state) {
  static const auto kShift = make_shift();
  return kShift[0][state & 0xFF] ^ kShift[1][(state >> 8) & 0xFF] ^ kShift[2][(state >> 16) & 0xFF] ^
         kShift[3][state >> 24];
}

uint64_t eight(const unsigned char* bytes) {
  uint64_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

__attribute__((target("sse4.2"))) uint32_t extend_by_instruction(uint32_t state, const unsigned char* bytes,
                                                                 size_t count) {
  for (; count >= 3 * kLane; bytes += 3 * kLane, count -= 3 * kLane) {
    uint64_t a = state, b = 0, c = 0;
    for (size_t i = 0; i < kLane; i += 8) {
      a = __builtin_ia32_crc32di(a, eight(bytes + i));
      b = __builtin_ia32_crc32di(b, eight(bytes + kLane + i));
      c = __builtin_ia32_crc32di(c, eight(bytes + 2 * kLane + i));
    }
    state = past_lane(past_lane(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b)) ^ static_cast<uint32_t>(c);
  }
  uint64_t wide = state;
  for (; count >= 8; bytes += 8, count -= 8) wide = __builtin_ia32_crc32di(wide, eight(bytes));
  state = static_cast<uint32_t>(wide);
  for (; count > 0; ++bytes, --count) state = __builtin_ia32_crc32qi(state, *bytes);
  return state;
}

#endif

}  // namespace

uint32_t extend_crc32c(uint32_t crc, std::span<const std::byte> bytes) {
  const auto* begin = reinterpret_cast<const unsigned char*>(bytes.data());
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return ~extend_by_instruction(~crc, begin, bytes.size());
#endif
  return ~extend_by_table(~crc, begin, bytes.size());
}

uint32_t join_crc32c(uint32_t first, uint32_t second, uint64_t second_bytes) {
  return multiply(first, power_of_bytes(second_bytes)) ^ second;
}

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

}  // namespace hone
