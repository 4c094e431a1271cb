#include "dist/control_messages.h"

namespace hone {

namespace {
constexpr size_t kLengthBytes = 8;
}

std::string pack_texts(const std::vector<std::string>& texts) {
  std::string packed;
  for (const std::string& text : texts) {
    for (size_t i = 0; i < kLengthBytes; ++i) packed += static_cast<char>(text.size() >> (8 * i));
    packed += text;
  }
  return packed;
}

std::optional<std::vector<std::string>> unpack_texts(std::string_view packed) {
  std::vector<std::string> texts;
  while (!packed.empty()) {
    if (packed.size() < kLengthBytes) return std::nullopt;
    uint64_t length = 0;
    for (size_t i = 0; i < kLengthBytes; ++i) length |= uint64_t{static_cast<unsigned char>(packed[i])} << (8 * i);
    packed.remove_prefix(kLengthBytes);
    if (length > packed.size()) return std::nullopt;
    texts.emplace_back(packed.substr(0, length));
    packed.remove_prefix(length);
  }
  return texts;
}

}  // namespace hone
