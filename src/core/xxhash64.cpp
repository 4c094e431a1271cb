#include "core/xxhash64.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace hone {

namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87u, kPrime2 = 0xC2B2AE3D27D4EB4Fu, kPrime3 = 0x165667B19E3779F9u,
                   kPrime4 = 0x85EBCA77C2B2AE63u, kPrime5 = 0x27D4EB2F165667C5u;

static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

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
