#include "hub/proxy.h"

#include <fmt/format.h>

#include <cstdlib>
#include <sstream>

#include "core/base/error.h"
#include "core/base/printable.h"

namespace hone {
namespace {

std::string either_case(const std::string& name) {
  for (const std::string& spelling : {in_lower_case(name), name}) {
    if (const char* value = std::getenv(spelling.c_str()); value != nullptr && *value != '\0') return value;
  }
  return "";
}

/// Whether an entry of NO_PROXY is for the host.
bool covers(std::string entry, const Url& url) {
  entry = in_lower_case(entry);
  if (entry == "*") return true;
  if (const std::string port = fmt::format(":{}", url.port); entry.ends_with(port) && entry != url.host) {
    entry.resize(entry.size() - port.size());
  }
  if (entry.starts_with("*.")) entry.erase(0, 1);
  if (entry.starts_with('.')) entry.erase(0, 1);
  if (entry.starts_with('[') && entry.ends_with(']')) entry = entry.substr(1, entry.size() - 2);
  return !entry.empty() && (url.host == entry || url.host.ends_with("." + entry));
}

bool goes_direct(const Url& url) {
  std::string list = either_case("NO_PROXY");
  for (char& c : list) c = c == ',' ? ' ' : c;
  std::istringstream entries(list);
  for (std::string entry; entries >> entry;) {
    if (covers(entry, url)) return true;
  }
  return false;
}

std::string decoded(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_hex = [&](size_t at) {
      return at < text.size() && std::isxdigit(static_cast<unsigned char>(text[at]));
    };
    if (text[i] == '%' && is_hex(i + 1) && is_hex(i + 2)) {
      plain += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

}  // namespace

std::optional<Proxy> proxy_for(const Url& url) {
  const std::string name = url.tls ? "HTTPS_PROXY" : "HTTP_PROXY";
  std::string text = either_case(name), where = name;
  if (text.empty()) text = either_case(where = "ALL_PROXY");
  if (text.empty() || goes_direct(url)) return std::nullopt;
  Proxy proxy;
  if (text.find("://") == std::string::npos) text = "http://" + text;
  if (const size_t at = text.rfind('@'); at != std::string::npos) {
    const size_t begin = text.find("://") + 3;
    const std::string user = text.substr(begin, at - begin);
    proxy.user = decoded(user.substr(0, user.find(':')));
    if (user.find(':') != std::string::npos) proxy.password = decoded(user.substr(user.find(':') + 1));
    text.erase(begin, at + 1 - begin);
  }
  const std::optional<Url> address = parse_url(text);
  if (!address || address->tls) {
    throw UserError(
        "the proxy is not an http:// address", where,
        "write http://HOST:PORT; a proxy of another kind (socks, https) is not used: NO_PROXY leaves it out");
  }
  proxy.host = address->host;
  proxy.port = address->port;
  return proxy;
}

}  // namespace hone
