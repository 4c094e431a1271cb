// Texts of a run's files as its page may show them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hone {

/// Text of a configuration or a log with "…" in the place of passwords in URLs, and of the values of keys whose names
/// end in password, secret, api_key or access_token.
std::string without_secrets(std::string_view text);

/// `text`, or its first `most` bytes (at the beginning of a character) and "…".
std::string clipped(std::string_view text, size_t most);

}  // namespace hone
