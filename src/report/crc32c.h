// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78; RFC 3720 appendix B.4 has test vectors).
#pragma once

#include <cstdint>
#include <string_view>

namespace hone {

uint32_t crc32c(std::string_view bytes);

/// The checksum of a TFRecord: rotated and offset, so that a checksum of data that holds checksums stays strong.
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace hone
