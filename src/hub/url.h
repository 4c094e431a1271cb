// Addresses of the hub: parsed strictly, since they come from the environment and from servers.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hone {

/// An http or https address without user, password and fragment.
struct Url {
  bool tls = true;
  std::string host;  ///< lower case; an IPv6 address without brackets
  int port = 443;
  std::string path = "/";  ///< with the query, percent-encoded; begins with '/'

  /// "https://host:port", without the scheme's own port.
  std::string origin() const;
  std::string text() const { return origin() + path; }
  /// The same scheme, host and port: where a token may go.
  bool same_origin(const Url& other) const { return tls == other.tls && host == other.host && port == other.port; }
  /// 127.0.0.0/8, ::1 or localhost.
  bool loopback() const;
};

/// Nothing for other schemes, for a user or password in it, for spaces and control characters, and for a bad port.
std::optional<Url> parse_url(std::string_view text);

/// The target of a redirect from `base`: an address, or a path on the same server.
std::optional<Url> resolve_url(const Url& base, std::string_view location);

/// Percent-encodes all but letters, digits and "-._~"; with `slashes` also leaves '/' as it is.
std::string percent_encoded(std::string_view text, bool slashes = false);

}  // namespace hone
