// SipHash-2-4: a keyed hash of texts, so nobody can construct many texts with the same hash.
// Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace hone {

using SipKey = std::array<uint64_t, 2>;

uint64_t sip_hash(std::string_view text, const SipKey& key);

/// A random key of this process, generated at first use.
const SipKey& process_sip_key();

}  // namespace hone
