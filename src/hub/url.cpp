#include "hub/url.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/base/printable.h"

namespace hone {
namespace {

bool is_plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f && c != '\\'; });
}

bool is_host(std::string_view host, bool ipv6) {
  const auto fits = [&](char c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    return letter || (ipv6 ? c == ':' || c == '.' : c == '.' || c == '-' || c == '_');
  };
  return !host.empty() && host.size() <= 253 && std::all_of(host.begin(), host.end(), fits);
}

/// Takes "host", "host:port" or "[ipv6]:port" apart.
bool read_authority(std::string_view text, Url& url) {
  std::string_view port;
  bool has_port = false, ipv6 = false;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return false;
    const std::string_view rest = text.substr(end + 1);
    if (!rest.empty() && !rest.starts_with(':')) return false;
    has_port = !rest.empty();
    if (has_port) port = rest.substr(1);
    text = text.substr(1, end - 1);
    ipv6 = true;
  } else if (const size_t colon = text.find(':'); colon != std::string_view::npos) {
    has_port = true;
    port = text.substr(colon + 1);
    text = text.substr(0, colon);
  }
  if (!is_host(text, ipv6)) return false;
  url.host = in_lower_case(std::string(text));
  url.port = url.tls ? 443 : 80;
  if (!has_port) return true;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), url.port);
  return error == std::errc() && end == port.data() + port.size() && url.port > 0 && url.port < 65536;
}

}  // namespace

std::string Url::origin() const {
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  const bool usual = port == (tls ? 443 : 80);
  return fmt::format("{}://{}{}", tls ? "https" : "http", name, usual ? "" : fmt::format(":{}", port));
}

bool Url::loopback() const {
  if (host == "localhost" || host == "::1") return true;
  const bool digits = std::all_of(host.begin(), host.end(), [](char c) { return c == '.' || (c >= '0' && c <= '9'); });
  return digits && host.starts_with("127.");
}

std::optional<Url> parse_url(std::string_view text) {
  Url url;
  if (!is_plain(text)) return std::nullopt;
  const size_t scheme = text.find("://");
  if (scheme == std::string_view::npos) return std::nullopt;
  const std::string name = in_lower_case(std::string(text.substr(0, scheme)));
  if (name != "https" && name != "http") return std::nullopt;
  url.tls = name == "https";
  text = text.substr(scheme + 3);
  text = text.substr(0, text.find('#'));
  const size_t path = text.find_first_of("/?");
  if (!read_authority(text.substr(0, path), url)) return std::nullopt;
  url.path = path == std::string_view::npos ? "/" : std::string(text.substr(path));
  if (url.path.front() == '?') url.path.insert(0, "/");
  return url;
}

std::optional<Url> resolve_url(const Url& base, std::string_view location) {
  if (!is_plain(location) || location.empty()) return std::nullopt;
  const size_t scheme = location.find("://");
  if (scheme != std::string_view::npos && location.find_first_of("/?#") == scheme + 1) return parse_url(location);
  if (location.starts_with("//")) return parse_url((base.tls ? "https:" : "http:") + std::string(location));
  Url url = base;
  const std::string folder = base.path.substr(0, base.path.substr(0, base.path.find('?')).rfind('/') + 1);
  location = location.substr(0, location.find('#'));
  url.path = location.starts_with('/') ? std::string(location) : folder + std::string(location);
  return url;
}

std::string percent_encoded(std::string_view text, bool slashes) {
  std::string encoded;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '.' || c == '_' || c == '~' || (slashes && c == '/');
    if (plain) {
      encoded += c;
    } else {
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

}  // namespace hone
