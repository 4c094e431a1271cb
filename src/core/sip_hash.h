// SipHash-2-4: a hash of texts under a secret key, so that nobody can choose many texts with one hash.
// Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace hone {

using SipKey = std::array<uint64_t, 2>;

uint64_t sip_hash(std::string_view text, const SipKey& key);

/// A key of this process, drawn when it is first asked for.
const SipKey& process_sip_key();

}  // namespace hone
