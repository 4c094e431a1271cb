#include "core/base/sip_hash.h"

#include <bit>
#include <cstring>
#include <random>

namespace hone {

namespace {

struct SipState {
  uint64_t a, b, c, d;

  void round() {
    a += b;
    b = std::rotl(b, 13) ^ a;
    a = std::rotl(a, 32);
    c += d;
    d = std::rotl(d, 16) ^ c;
    a += d;
    d = std::rotl(d, 21) ^ a;
    c += b;
    b = std::rotl(b, 17) ^ c;
    c = std::rotl(c, 32);
  }
  void absorb(uint64_t word) {
    d ^= word;
    round();
    round();
    a ^= word;
  }
};

}  // namespace

uint64_t sip_hash(std::string_view text, const SipKey& key) {
  static_assert(std::endian::native == std::endian::little);
  SipState state{key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du, key[0] ^ 0x6c7967656e657261u,
                 key[1] ^ 0x7465646279746573u};
  uint64_t last = uint64_t{text.size()} << 56;
  for (; text.size() >= 8; text.remove_prefix(8)) {
    uint64_t word;
    std::memcpy(&word, text.data(), 8);
    state.absorb(word);
  }
  for (size_t i = 0; i < text.size(); ++i) last |= uint64_t{static_cast<uint8_t>(text[i])} << (8 * i);
  state.absorb(last);
  state.c ^= 0xff;
  for (int i = 0; i < 4; ++i) state.round();
  return state.a ^ state.b ^ state.c ^ state.d;
}

const SipKey& process_sip_key() {
  static const SipKey key = [] {
    std::random_device random;
    const auto word = [&] { return uint64_t{random()} << 32 | random(); };
    return SipKey{word(), word()};
  }();
  return key;
}

}  // namespace hone
