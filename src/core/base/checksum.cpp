#include "core/base/checksum.h"

#include <algorithm>
#include <bit>
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

/// The product of two polynomials over GF(2) modulo the CRC polynomial, with reflected bits (x^0 is the highest bit).
constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = uint32_t{1} << 31; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = (b >> 1) ^ (b & 1 ? kPolynomial : 0u);
  }
  return product;
}

/// x^(8 · bytes): the factor of a checksum that `bytes` further bytes follow.
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

/// Tables that advance the state of a checksum by kLane bytes, one for each of its four bytes.
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

namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87u, kPrime2 = 0xC2B2AE3D27D4EB4Fu, kPrime3 = 0x165667B19E3779F9u,
                   kPrime4 = 0x85EBCA77C2B2AE63u, kPrime5 = 0x27D4EB2F165667C5u;

static_assert(std::endian::native == std::endian::little, "words are read in the byte order of the machine");

template <class Word>
Word load(const std::byte* at) {
  Word word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

uint64_t mixed_lane(uint64_t lane, uint64_t word) { return std::rotl(lane + word * kPrime2, 31) * kPrime1; }

uint64_t merged(uint64_t hash, uint64_t lane) { return (hash ^ mixed_lane(0, lane)) * kPrime1 + kPrime4; }

}  // namespace

Xxh64::Xxh64(uint64_t seed) : seed_(seed), lanes_{seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1} {}

void Xxh64::mix_stripe(const std::byte* stripe) {
  for (size_t i = 0; i < lanes_.size(); ++i) lanes_[i] = mixed_lane(lanes_[i], load<uint64_t>(stripe + 8 * i));
}

Xxh64& Xxh64::update(std::span<const std::byte> bytes) {
  total_ += bytes.size();
  if (rest_size_ > 0) {
    const size_t taken = std::min(kStripe - rest_size_, bytes.size());
    std::copy_n(bytes.data(), taken, rest_.data() + rest_size_);
    rest_size_ += taken;
    bytes = bytes.subspan(taken);
    if (rest_size_ < kStripe) return *this;
    mix_stripe(rest_.data());
    rest_size_ = 0;
  }
  for (; bytes.size() >= kStripe; bytes = bytes.subspan(kStripe)) mix_stripe(bytes.data());
  std::copy_n(bytes.data(), bytes.size(), rest_.data());
  rest_size_ = bytes.size();
  return *this;
}

uint64_t Xxh64::digest() const {
  uint64_t hash = seed_ + kPrime5;
  if (total_ >= kStripe) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
    for (const uint64_t lane : lanes_) hash = merged(hash, lane);
  }
  hash += total_;
  size_t at = 0;
  for (; at + 8 <= rest_size_; at += 8)
    hash = std::rotl(hash ^ mixed_lane(0, load<uint64_t>(&rest_[at])), 27) * kPrime1 + kPrime4;
  if (at + 4 <= rest_size_) {
    hash = std::rotl(hash ^ (load<uint32_t>(&rest_[at]) * kPrime1), 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at < rest_size_; ++at) hash = std::rotl(hash ^ (static_cast<uint64_t>(rest_[at]) * kPrime5), 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

std::string hash_text(uint64_t hash) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(16, '0');
  for (size_t i = 0; i < text.size(); ++i) text[15 - i] = kDigits[(hash >> (4 * i)) & 15];
  return text;
}

}  // namespace hone
