#include "hub/hub_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/files/file_bytes.h"

namespace hone {
namespace {

constexpr const char* kPublicEndpoint = "https://huggingface.co";

/// A variable that is set and not empty; else "".
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_true(const char* name) {
  const std::string value = in_lower_case(variable(name));
  return value == "1" || value == "on" || value == "yes" || value == "true";
}

/// `text` with ~ at its beginning and $NAME and ${NAME} in it replaced, as huggingface_hub does in paths.
std::filesystem::path expanded(std::string text) {
  if (text == "~" || text.starts_with("~/")) text.replace(0, 1, variable("HOME"));
  std::string path;
  for (size_t at = 0; at < text.size();) {
    const auto in_name = [&](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
    const bool braces = text.compare(at, 2, "${") == 0;
    const size_t begin = at + (braces ? 2 : 1);
    size_t end = begin;
    while (end < text.size() && in_name(text[end])) ++end;
    const bool closed = !braces || (end < text.size() && text[end] == '}');
    const char* value =
        text[at] == '$' && end > begin && closed ? std::getenv(text.substr(begin, end - begin).c_str()) : nullptr;
    if (value == nullptr) {
      path += text[at++];
      continue;
    }
    path += value;
    at = end + (braces ? 1 : 0);
  }
  return path;
}

std::filesystem::path home_folder() {
  if (const std::string home = variable("HF_HOME"); !home.empty()) return expanded(home);
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return expanded(cache) / "huggingface";
  return expanded("~/.cache/huggingface");
}

std::string trimmed(const std::string& text) {
  constexpr const char* kBlank = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlank);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin);
}

std::string read_token() {
  std::string where = "HF_TOKEN";
  std::string token = trimmed(variable("HF_TOKEN"));
  if (token.empty()) token = trimmed(variable("HUGGING_FACE_HUB_TOKEN"));
  if (token.empty() && !is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN")) {
    const std::string stated = variable("HF_TOKEN_PATH");
    const std::filesystem::path path = stated.empty() ? home_folder() / "token" : expanded(stated);
    where = path.string();
    token = trimmed(read_whole_file_if_there(path, 1 << 16).value_or(""));
  }
  const bool one_word = std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (!one_word) {
    throw UserError("the token of the hub has spaces or other characters that no token has", where,
                    "write the token alone, as https://huggingface.co/settings/tokens shows it");
  }
  return token;
}

Url read_endpoint() {
  std::string text = trimmed(variable("HF_ENDPOINT"));
  if (text.empty()) text = kPublicEndpoint;
  while (text.ends_with('/')) text.pop_back();
  std::optional<Url> url = parse_url(text);
  if (!url || url->path.find('?') != std::string::npos) {
    throw UserError(fmt::format("'{}' is not an address of a hub", one_line(text)), "HF_ENDPOINT",
                    "write it as https://HOST, without user and password");
  }
  if (!url->tls && !url->loopback()) {
    throw UserError(
        fmt::format("{} has no TLS: a token and weights could be read and changed on their way", url->origin()),
        "HF_ENDPOINT", "write https://; http:// is for a server of this machine (localhost)");
  }
  if (url->path == "/") url->path.clear();
  return *url;
}

}  // namespace

Url HubSettings::address(const std::string& path) const {
  Url url = endpoint;
  url.path += "/" + path;
  return url;
}

std::filesystem::path hub_cache_folder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string cache = variable(name); !cache.empty()) return expanded(cache);
  }
  return home_folder() / "hub";
}

HubSettings hub_settings() {
  return {read_endpoint(), read_token(), hub_cache_folder(),
          is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE")};
}

}  // namespace hone
